// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/manifest.h"
#include "thinwire/checkpoint/options.h"
#include "thinwire/core/parameter_layout.h"

namespace thinwire::checkpoint {

/// Which saved parameter is which of a model's.
struct Matching {
  /// By the model's index, the manifest's; none for a new parameter.
  std::vector<std::optional<std::size_t>> saved;
  [[nodiscard]] bool has_new() const;
};

/// Matches parameters by name, after the options' renaming. Throws
/// Error(kCorruptCheckpoint) with a line for each parameter that is missing,
/// unexpected, or of another shape or group. Throws Error(kInvalidArgument) for
/// an option that matches nothing. `with_groups`: groups must be the same.
[[nodiscard]] Matching match(const std::vector<SavedParameter>& saved,
                             const ParameterLayout& layout,
                             const LoadOptions& options, bool with_groups);

/// Whether the name is the pattern, in which * stands for any characters.
[[nodiscard]] bool matches(std::string_view pattern, std::string_view name);

}  // namespace thinwire::checkpoint
