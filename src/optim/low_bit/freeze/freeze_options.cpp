// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/freeze_options.h"

#include "core/require.h"
#include "optim/checks.h"

namespace thinwire::optim {

void FreezeOptions::validate() const {
  const std::int64_t named = step.value_or(1);
  require(named >= 1 || named == kAutoFreeze, "freeze_step",
          ">= 1 or kAutoFreeze (-1)", named);
  require(lr_warmup_steps.value_or(0) >= 0, "lr_warmup_steps", ">= 0",
          lr_warmup_steps.value_or(0));
  require(total_steps.value_or(1) >= 1, "total_steps", ">= 1",
          total_steps.value_or(1));
  require(min_step >= 1, "min_freeze_step", ">= 1", min_step);
  require(max_step.value_or(1) >= 1, "max_freeze_step", ">= 1",
          max_step.value_or(1));
  require_warmup_bits(warmup_bits);
  require(ratio > 0 && ratio <= 1, "freeze_ratio", "in (0, 1]", ratio);
}

}  // namespace thinwire::optim
