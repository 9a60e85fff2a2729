// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/format/safetensors.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/optim/state.h"

namespace thinwire::checkpoint {

inline constexpr std::uint64_t kChunkBytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kMostManifestBytes = std::uint64_t{256} << 20;
inline constexpr std::string_view kManifestName = "manifest.json";

/// A parameter as it was when it was saved.
struct SavedParameter {
  std::string name;
  std::vector<std::size_t> shape{};
  std::size_t group = 0;
  TensorType type{};  ///< Of its weight.
};

/// An array of the state; its values are in tensors of this name.
struct SavedArray {
  std::string name;
  optim::Axis axis = optim::Axis::kFree;
  optim::Sharing sharing = optim::Sharing::kSame;
  DType dtype = DType::kFloat32;
  /// These are the parameters in fp32. Where the weights are fp32, no file has
  /// it: they are the same numbers.
  bool is_parameters = false;
};

struct SavedFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> chunk_hashes{};  ///< XXH3-64 per kChunkBytes.
  /// Each array that this file holds a part of, and the tensor that says which
  /// elements ("fragments/0", int64 [rows, 3]: parameter, first element,
  /// count); empty: none is needed.
  std::vector<std::pair<std::string, std::string>> tensors{};
  /// In whose directory it was written, where hosts have one each; else empty.
  std::string host{};
};

/// manifest.json: what a checkpoint is. Numbers and texts of the optimizer, of
/// the engine and of the application's extras are StateDicts without arrays.
struct Manifest {
  int major = 1;
  int minor = 0;
  std::vector<std::string> required{};  ///< "requires": features.
  std::string id;                       ///< 32 hexadecimal digits.
  std::string run;  ///< The same for all checkpoints of a run.
  std::int64_t save_index = 0;
  std::int64_t step = 0;
  std::string written;  ///< "2026-09-01T12:00:00Z"
  std::string library;  ///< Version.
  bool durable = true;
  bool finite = true;  ///< A load accepts the values of all parameters.
  int world = 1;
  std::string optimizer;
  std::string semantics;
  std::string phase;
  std::string precision;  ///< "fp32", "fp16", "bf16".
  int zero_stage = 0;
  std::vector<SavedParameter> parameters{};
  std::vector<std::pair<std::string, std::string>> aliases{};
  std::vector<SavedParameter> others{};
  std::vector<SavedArray> arrays{};
  std::vector<SavedFile> files{};
  StateDict scalars{};
  StateDict caller{};  ///< Training::scalars: the engine's.
  std::vector<StateDict> scalars_of_ranks{};
  StateDict extra{};  ///< Its arrays are tensors "extra/NAME" of files.
  std::vector<StateDict> extra_of_ranks{};
  std::string config{};
  std::vector<std::string> weight_files{};
  std::int64_t steps_behind = 0;  ///< Of the weights, in local steps.
};

/// An array of the parameters that a rank has itself, where those of ranks
/// differ for good and the weights are rank 0's.
inline constexpr const char* kOwnParameters = "own_parameters";

/// Whether each host wrote its ranks' files into a directory of its own.
[[nodiscard]] bool is_in_parts(const Manifest& manifest) noexcept;

/// The text, which ends with a hash of itself; major and minor are this
/// version's. Throws Error(kInvalidArgument) for a name or a text that is not
/// UTF-8, and beyond kMostManifestBytes.
[[nodiscard]] std::string write_manifest(const Manifest& manifest);
/// Throws Error(kCorruptCheckpoint) naming `file` and what is wrong: the hash,
/// a member that is missing or of another kind, a version or feature that this
/// one does not know.
[[nodiscard]] Manifest parse_manifest(std::string_view text,
                                      const std::string& file);

}  // namespace thinwire::checkpoint
