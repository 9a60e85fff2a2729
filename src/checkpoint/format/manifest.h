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

/// A parameter at the time of the save.
struct SavedParameter {
  std::string name;
  std::vector<std::size_t> shape{};
  std::size_t group = 0;
  TensorType type{};  ///< Type of its weight.
};

/// An array of the state. Tensors of this name hold its values.
struct SavedArray {
  std::string name;
  optim::Axis axis = optim::Axis::kFree;
  optim::Sharing sharing = optim::Sharing::kSame;
  DType dtype = DType::kFloat32;
  /// Whether the array holds the parameters in fp32. If the weights are fp32,
  /// no file has this array, because it would repeat the weights.
  bool is_parameters = false;
};

struct SavedFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> chunk_hashes{};  ///< XXH3-64 per kChunkBytes.
  /// The name of each array of which this file holds a part, and the name of
  /// its index tensor, such as "fragments/0". An index tensor is int64 [rows,
  /// 3] with parameter, first element and count. Its name is empty if none is
  /// needed.
  std::vector<std::pair<std::string, std::string>> tensors{};
  /// Host in whose directory the file was written. Empty if all hosts share one
  /// directory.
  std::string host{};
};

/// Contents of manifest.json, which describes a checkpoint. StateDicts without
/// arrays hold numbers and texts of the optimizer, the engine and the
/// application.
struct Manifest {
  std::string id;   ///< 32 hexadecimal digits.
  std::string run;  ///< Identifies the run that saved it.
  std::int64_t save_index = 0;
  std::int64_t step = 0;
  std::string written;  ///< For example "2026-09-01T12:00:00Z".
  std::string library;  ///< Version of Thinwire.
  bool durable = true;
  bool finite = true;  ///< Whether a load accepts the values of all parameters.
  int world = 1;
  std::string optimizer;
  std::string semantics;
  std::string phase;
  std::string precision;  ///< "fp32", "fp16" or "bf16".
  int zero_stage = 0;
  std::vector<SavedParameter> parameters{};
  std::vector<std::pair<std::string, std::string>> aliases{};
  std::vector<SavedParameter> others{};
  std::vector<SavedArray> arrays{};
  std::vector<SavedFile> files{};
  StateDict scalars{};
  StateDict caller{};  ///< Training::scalars, from the engine.
  std::vector<StateDict> scalars_of_ranks{};
  StateDict extra{};  ///< Its arrays are tensors "extra/NAME" in files.
  std::vector<StateDict> extra_of_ranks{};
  std::string config{};
  std::vector<std::string> weight_files{};
  std::int64_t steps_behind = 0;  ///< Local steps by which the weights lag.
};

/// Name of the array with each rank's own parameters, if these differ between
/// ranks permanently. The weights are then rank 0's.
inline constexpr const char* kOwnParameters = "own_parameters";

/// Returns the number of local steps that a load of the weights loses. It is 0
/// for 1-bit Adam under the next step, although steps_behind counts the step by
/// which parameters differ.
[[nodiscard]] std::int64_t steps_left_out(const Manifest& manifest);

/// Returns whether each host wrote the files of its ranks into a separate
/// directory.
[[nodiscard]] bool is_in_parts(const Manifest& manifest) noexcept;

/// Returns the text, which ends with its own hash, in this version's format.
/// Throws Error(kInvalidArgument) for a name or text that is not UTF-8, and for
/// more than kMostManifestBytes.
[[nodiscard]] std::string write_manifest(const Manifest& manifest);
/// Parses a manifest. Throws Error(kCorruptCheckpoint), which names `file` and
/// the fault: a wrong hash, a missing member, a wrong type, or an unknown
/// version or feature.
[[nodiscard]] Manifest parse_manifest(std::string_view text,
                                      const std::string& file);

// ---- what writing and parsing share

inline constexpr std::string_view kManifestFormat = "thinwire.checkpoint";
inline constexpr int kManifestMajor = 1;
inline constexpr int kManifestMinor = 0;

/// Returns 16 hexadecimal digits.
[[nodiscard]] std::string hash_text(std::uint64_t hash);
/// Returns the end of a manifest that begins with `text`.
[[nodiscard]] std::string manifest_end(std::string_view text);

/// Convert an entry of the list of files. file_from_json() throws
/// Error(kCorruptCheckpoint), which names `from`.
[[nodiscard]] JsonValue file_to_json(const SavedFile& file);
[[nodiscard]] SavedFile file_from_json(const JsonValue& value,
                                       const std::string& from);
/// Returns [{"name": ..., "integer" | "real" | "text": ...}], sorted by name.
/// Throws Error(kInvalidArgument) for a name or text that is not UTF-8.
[[nodiscard]] JsonValue scalars_to_json(const StateDict& state);
/// Adds an entry of that list. Throws Error(kCorruptCheckpoint), which names
/// the file and the member.
void add_scalar(StateDict& state, const JsonValue& scalar,
                const std::string& file, std::string_view member);

}  // namespace thinwire::checkpoint
