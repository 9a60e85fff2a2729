// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/format/safetensors.h"
#include "core/json_text.h"
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
  TensorType type{};  ///< Type of its weight.
};

/// An array of the state; its values are in tensors of this name.
struct SavedArray {
  std::string name;
  optim::Axis axis = optim::Axis::kFree;
  optim::Sharing sharing = optim::Sharing::kSame;
  DType dtype = DType::kFloat32;
  /// True for the parameters in fp32. If the weights are fp32, no file holds
  /// this array, because the weights are the same numbers.
  bool is_parameters = false;
};

struct SavedFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> chunk_hashes{};  ///< XXH3-64 per kChunkBytes.
  /// Each array that this file holds a part of, and its index tensor
  /// ("fragments/0", int64 [rows, 3]: parameter, first element, count). The
  /// index is empty if none is needed.
  std::vector<std::pair<std::string, std::string>> tensors{};
  /// The host in whose directory it was written, or empty if all hosts share
  /// one.
  std::string host{};
};

/// manifest.json: what a checkpoint is. Numbers and texts of the optimizer, of
/// the engine and of the application's extras are StateDicts without arrays.
struct Manifest {
  std::string id;   ///< 32 hexadecimal digits.
  std::string run;  ///< Equal for all checkpoints of a run.
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
  std::int64_t steps_behind = 0;  ///< Local steps that the weights are behind.
};

/// An array of the parameters that a rank has itself, where those of ranks
/// differ for good and the weights are rank 0's.
inline constexpr const char* kOwnParameters = "own_parameters";

/// Returns the local steps that the weights lack. Under the next step of 1-bit
/// Adam they lack none: steps_behind counts the one that parameters differ by.
[[nodiscard]] std::int64_t steps_left_out(const Manifest& manifest);

/// Whether each host wrote its ranks' files into a directory of its own.
[[nodiscard]] bool is_in_parts(const Manifest& manifest) noexcept;

/// The text, which ends with a hash of itself; major and minor are this
/// version's. Throws Error(kInvalidArgument) for a name or a text that is not
/// UTF-8, and beyond kMostManifestBytes.
[[nodiscard]] std::string write_manifest(const Manifest& manifest);
/// Throws Error(kCorruptCheckpoint), which names `file` and the fault: a wrong
/// hash, a missing member or one of another type, or an unknown version or
/// feature.
[[nodiscard]] Manifest parse_manifest(std::string_view text,
                                      const std::string& file);

// ---- what writing and parsing share

inline constexpr std::string_view kManifestFormat = "thinwire.checkpoint";
inline constexpr int kManifestMajor = 1;
inline constexpr int kManifestMinor = 0;

/// 16 hexadecimal digits.
[[nodiscard]] std::string hash_text(std::uint64_t hash);
/// Returns the end of a manifest that begins with `text`.
[[nodiscard]] std::string manifest_end(std::string_view text);

/// One of the list of files. file_from_json() throws Error(kCorruptCheckpoint),
/// which names `from`.
[[nodiscard]] JsonValue file_to_json(const SavedFile& file);
[[nodiscard]] SavedFile file_from_json(const JsonValue& value,
                                       const std::string& from);
/// [{"name": ..., "integer" | "real" | "text": ...}], by name. Throws
/// Error(kInvalidArgument) for a name or a text that is not UTF-8.
[[nodiscard]] JsonValue scalars_to_json(const StateDict& state);
/// Adds one of that list. Throws Error(kCorruptCheckpoint) naming file and
/// member.
void add_scalar(StateDict& state, const JsonValue& scalar,
                const std::string& file, std::string_view member);

}  // namespace thinwire::checkpoint
