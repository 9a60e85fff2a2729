// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/require.h"
#include "thinwire/optim/low_bit_optimizer.h"

/// Checks that the reference's low-bit optimizers share. They throw
/// Error(kInvalidArgument) naming the field, its range and its value.
namespace thinwire::deepspeed {

template <class Options>
void require_no_automatic_freeze(const Options& options) {
  require(options.freeze_step.value_or(1) != optim::kAutoFreeze, "semantics",
          "corrected with an automatic freeze", "deepspeed");
}

/// All that Thinwire's own class checks, but that `freeze_step` may be 0: the
/// initialization step counts.
template <class Options>
void validate_rest(Options options,
                   std::optional<std::int64_t> Options::*freeze_step,
                   const char* name, const ParameterLayout& layout) {
  const std::int64_t named = (options.*freeze_step).value_or(1);
  require(named >= 0, name, ">= 0", named);
  require(options.residual_dtype == DType::kFloat32, "residual_dtype",
          "float32 with deepspeed semantics",
          to_string(options.residual_dtype));
  options.*freeze_step = std::max<std::int64_t>(1, named);
  options.validate(layout);
}

}  // namespace thinwire::deepspeed
