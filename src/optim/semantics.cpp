// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/semantics.h"

#include <fmt/format.h>

#include "thinwire/core/error.h"

namespace thinwire::optim {

std::string_view to_string(Semantics semantics) noexcept {
  return semantics == Semantics::kCorrected ? "corrected" : "deepspeed";
}

Semantics semantics_from(std::string_view name) {
  for (const Semantics semantics :
       {Semantics::kCorrected, Semantics::kDeepSpeed})
    if (name == to_string(semantics)) return semantics;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("semantics must be corrected or deepspeed, got '{}'", name));
}

Policy policy_of(Semantics semantics) noexcept {
  if (semantics == Semantics::kCorrected) return {};
  return {.initialization_step = true,
          .honours_adam_options = false,
          .scale_per_parameter = true,
          .masks_before_compression = false,
          .floors_denominator = false,
          .skips_nonfinite = false,
          .keeps_residuals_on_load = false};
}

}  // namespace thinwire::optim
