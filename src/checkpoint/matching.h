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

/// The saved parameter for each parameter of a model.
struct Matching {
  /// The index in the manifest for each index of the model. Unset for a new
  /// parameter.
  std::vector<std::optional<std::size_t>> saved;
  /// Missing or unexpected names, if the options are not strict.
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
/// from one of the model's only by prefixes of wrappers. Throws
/// Error(kInvalidArgument) if a renaming starts from a name that the checkpoint
/// lacks.
[[nodiscard]] LoadOptions with_renames(const Manifest& manifest,
                                       const ParameterLayout& layout,
                                       const std::vector<OtherTensor>& others,
                                       LoadOptions options);

/// Returns the name that the options give to a saved tensor.
[[nodiscard]] const std::string& renamed(const std::string& name,
                                         const LoadOptions& options);

/// Matches parameters by name, after the options' renaming. Throws
/// Error(kCorruptCheckpoint) with a line for each parameter of another shape or
/// group. If the options are strict, missing and unexpected parameters count
/// too. Throws Error(kInvalidArgument) for an option that matches nothing.
/// Groups must be the same if `with_groups`.
[[nodiscard]] Matching match(const std::vector<SavedParameter>& saved,
                             const ParameterLayout& layout,
                             const LoadOptions& options, bool with_groups);

/// Returns whether the name matches the pattern, in which * stands for any
/// characters.
[[nodiscard]] bool matches(std::string_view pattern, std::string_view name);

/// Returns the saved tensor for each of the model's tensors that are not
/// parameters. If none was saved, or it is ignored, the pointer is null and
/// `notes` gets a line. Throws Error(kCorruptCheckpoint) if the shape differs,
/// or if the type differs and not both are fp32, fp16 or bf16.
[[nodiscard]] std::vector<const SavedParameter*> match_others(
    const std::vector<OtherTensor>& others, const Manifest& manifest,
    const LoadOptions& options, std::vector<std::string>& notes);

/// Returns the values of match_others(), empty if the pointer is null. Throws
/// like Weights.
[[nodiscard]] std::vector<Buffer> read_others(
    const std::vector<const SavedParameter*>& saved, Weights& weights);

/// Copies or converts the values. Cannot fail.
void put_in_place(const std::vector<Buffer>& values,
                  const std::vector<OtherTensor>& others) noexcept;

}  // namespace thinwire::checkpoint
