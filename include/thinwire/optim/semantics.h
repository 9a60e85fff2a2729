// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace thinwire::optim {

/// Which trajectory a low-bit optimizer follows.
enum class Semantics {
  /// What the papers and a user would expect. The default.
  kCorrected,
  /// The same numbers as DeepSpeed 0.19.6, bit for bit: for those who migrate
  /// a run or reproduce a paper. docs/algorithms.md lists what differs.
  kDeepSpeed,
};

/// "corrected", "deepspeed".
[[nodiscard]] std::string_view to_string(Semantics semantics) noexcept;
/// Throws Error(kInvalidArgument) naming the two for anything else.
[[nodiscard]] Semantics semantics_from(std::string_view name);

/// A preset's decisions, one by one. Algorithms read the field they need; none
/// asks which preset it was.
struct Policy {
  /// The first step() changes nothing but counts as step 1.
  bool initialization_step = false;
  /// bias_correction, epsilon_inside_sqrt and max_grad_norm have an effect.
  bool honours_adam_options = true;
  /// One scale per parameter, whose padding counts and carries residuals,
  /// instead of one per block of at most 1024 elements without padding.
  bool scale_per_parameter = false;
  /// Masked elements are left out of the compression, and so are elements whose
  /// variance is 0 at the freeze; otherwise the mask multiplies its result.
  bool masks_before_compression = true;
  /// The denominator gets its floor at the freeze.
  bool floors_denominator = true;
  /// A step with a gradient that is not finite on any rank changes nothing.
  bool skips_nonfinite = true;
  /// Residuals are loaded with the rest of the state.
  bool keeps_residuals_on_load = true;
};

[[nodiscard]] Policy policy_of(Semantics semantics) noexcept;

}  // namespace thinwire::optim
