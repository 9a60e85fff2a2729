// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace thinwire::config {

/// Trajectory that training follows.
enum class Semantics {
  /// Results that the papers and a user would expect. The default.
  kCorrected,
  /// The same numbers as DeepSpeed 0.19.6, bit for bit, for users who migrate a
  /// run or reproduce a paper. docs/algorithms/deepspeed.md lists the
  /// differences.
  kDeepSpeed,
};

/// Returns "corrected" or "deepspeed".
[[nodiscard]] std::string_view to_string(Semantics semantics) noexcept;
/// Returns the semantics of this name. Throws Error(kInvalidArgument) with the
/// valid names for any other text.
[[nodiscard]] Semantics semantics_from(std::string_view name);

}  // namespace thinwire::config
