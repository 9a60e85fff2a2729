// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/format/safetensors.h"
#include "thinwire/checkpoint/options.h"
#include "thinwire/core/view.h"

/// Checkpoints as the format describes them, written plainly by one process:
/// what readers are tested with.
// `test::` means these and what all modules share.
namespace thinwire::test {}
namespace thinwire::checkpoint::test {
using namespace thinwire::test;  // NOLINT(google-build-using-namespace)

[[nodiscard]] std::string read_file(const std::string& path);
void write_file(const std::string& path, std::string_view bytes);

/// A tensor to write.
struct Content {
  std::string name;
  TensorType type{};
  std::vector<std::size_t> shape{};
  std::string bytes{};

  template <class T>
  static Content of(std::string name, const std::vector<T>& values) {
    return of(std::move(name), {values.size()}, values);
  }
  template <class T>
  static Content of(std::string name, std::vector<std::size_t> shape,
                    const std::vector<T>& values) {
    return {std::move(name),
            {dtype_of<T>},
            std::move(shape),
            {reinterpret_cast<const char*>(values.data()),
             values.size() * sizeof(T)}};
  }
};
/// The bytes of a safetensors file.
[[nodiscard]] std::string safetensors_of(const std::vector<Content>& contents);
/// With its size and hashes.
[[nodiscard]] SavedFile saved_file(const std::string& name,
                                   std::string_view bytes);

struct Tiny {
  int world = 2;
  std::int64_t step = 1000;
  /// Added to all values.
  double offset = 0;
  std::string id = std::string(32, 'c');
  /// Weights are bf16; masters (sharded) are what they were rounded from.
  bool has_masters = false;
};
/// Its parameters: a [5], empty [0], b [3, 3], one [].
[[nodiscard]] std::vector<SavedParameter> tiny_parameters();
inline constexpr std::size_t kTinySize = 15;  ///< Their elements.

/// Element `i` of the flat array, of weights and of: exp_avg (same),
/// exp_avg_sq (sharded), worker_error (mean; each rank's is another).
[[nodiscard]] float tiny_value(const Tiny& tiny, std::string_view array,
                               std::size_t i, int rank = 0);
/// There are also: scales (by range of two elements, same), trust (by
/// parameter), history (free, fp64), extra/random (own, bytes).
void write_tiny(const std::string& directory, const Tiny& tiny = {});
/// Reads everything that a load reads.
void read_all(const std::string& directory);

/// A checkpoint as save() writes it, with all that there may be in one.
struct Full {
  int world = 2;
  std::int64_t seen = 3;  ///< The application's numbers begin with it.
  float frozen = 0.5f;
};

/// 0/1 Adam inside of local steps; scalars and arrays of the application, of
/// all ranks and of each; a frozen tensor, a mask, a tied name. Gives its path,
/// ROOT/step-...
std::string write_full(const std::string& root, const Full& full = {});

}  // namespace thinwire::checkpoint::test
