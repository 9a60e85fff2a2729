// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "core/require.h"
#include "thinwire/optim/low_bit_optimizer.h"

/// Checks that the reference's low-bit optimizers share. They throw
/// Error(kInvalidArgument) naming the field, its range and its value.
namespace thinwire::deepspeed {

template <class Options>
void require_no_automatic_freeze(const Options& options) {
  require(options.freeze_step != optim::kAutoFreeze, "semantics",
          "corrected with an automatic freeze", "deepspeed");
}

/// All that Thinwire's own class checks, but that `freeze_step` may be 0: the
/// initialization step counts.
template <class Options>
void validate_rest(Options options, std::int64_t Options::*freeze_step,
                   const char* name, const ParameterLayout& layout) {
  require(options.*freeze_step >= 0, name, ">= 0", options.*freeze_step);
  require(options.residual_dtype == DType::kFloat32, "residual_dtype",
          "float32 with deepspeed semantics",
          to_string(options.residual_dtype));
  options.*freeze_step = std::max<std::int64_t>(1, options.*freeze_step);
  options.validate(layout);
}

}  // namespace thinwire::deepspeed
