// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "checkpoint/read/weights.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/parameter_layout.h"

namespace thinwire::checkpoint {

/// Which saved parameter is which of a model's.
struct Matching {
  /// By the model's index, the manifest's; none for a new parameter.
  std::vector<std::optional<std::size_t>> saved;
  /// Names that are missing or unexpected, unless the options are strict.
  std::vector<std::string> left_out{};
  [[nodiscard]] bool has_new() const;
};

/// Returns the type in files. Throws Error(kInvalidArgument) if `type` does not
/// fit the values.
[[nodiscard]] TensorType type_of(const OtherTensor& tensor);

/// Returns the name without the prefixes of torch's wrappers: "module." at the
/// beginning, and "_orig_mod." anywhere.
[[nodiscard]] std::string without_wrappers(std::string_view name);

/// Returns the options with a renaming for each saved tensor whose name differs
/// from one of the model's by wrappers' prefixes alone. Throws
/// Error(kInvalidArgument) for a renaming from no name of the checkpoint.
[[nodiscard]] LoadOptions with_renames(const Manifest& manifest,
                                       const ParameterLayout& layout,
                                       const std::vector<OtherTensor>& others,
                                       LoadOptions options);

/// Returns the name that the options give to a saved tensor.
[[nodiscard]] const std::string& renamed(const std::string& name,
                                         const LoadOptions& options);

/// Matches parameters by name, after the options' renaming. Throws
/// Error(kCorruptCheckpoint) with a line for each parameter that is of another
/// shape or group or, if the options are strict, missing or unexpected. Throws
/// Error(kInvalidArgument) for an option that matches nothing. `with_groups`:
/// groups must be the same.
[[nodiscard]] Matching match(const std::vector<SavedParameter>& saved,
                             const ParameterLayout& layout,
                             const LoadOptions& options, bool with_groups);

/// Whether the name is the pattern, in which * stands for any characters.
[[nodiscard]] bool matches(std::string_view pattern, std::string_view name);

/// Returns the saved tensor for each of the model's tensors that are no
/// parameters. It is null if none was saved or it is ignored, and `notes` gets
/// a line for it. Throws Error(kCorruptCheckpoint) for one of another shape, or
/// of another type unless both are fp32, fp16 or bf16.
[[nodiscard]] std::vector<const SavedParameter*> match_others(
    const std::vector<OtherTensor>& others, const Manifest& manifest,
    const LoadOptions& options, std::vector<std::string>& notes);

/// Their values; empty where there is none. Throws as Weights.
[[nodiscard]] std::vector<Buffer> read_others(
    const std::vector<const SavedParameter*>& saved, Weights& weights);

/// Copies or converts the values. Cannot fail.
void put_in_place(const std::vector<Buffer>& values,
                  const std::vector<OtherTensor>& others) noexcept;

}  // namespace thinwire::checkpoint
