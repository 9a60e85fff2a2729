// SPDX-License-Identifier: Apache-2.0
#include "thinwire/deepspeed/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/require.h"

namespace thinwire::deepspeed {

using precision::LossScaler;
using precision::LossScalerOptions;

LossScalerOptions zero_loss_scaler(LossScalerOptions options) {
  options.max_scale = std::numeric_limits<double>::infinity();
  return options;
}

LossScalerOptions wrapper_loss_scaler(LossScalerOptions options) {
  options.hysteresis = 1;
  options.consecutive_hysteresis = false;
  options.at_minimum = precision::AtMinimum::kHold;
  return zero_loss_scaler(options);
}

LossScaler loss_scaler(const LossScalerOptions& options) {
  LossScalerOptions ordinary = options;
  if (options.dynamic) {
    require(options.hysteresis >= 0, "hysteresis", ">= 0", options.hysteresis);
    ordinary.hysteresis = std::max<std::int64_t>(1, options.hysteresis);
    if (std::isfinite(options.min_scale))
      ordinary.min_scale = std::min(options.min_scale, options.initial_scale);
  }
  ordinary.validate();
  return LossScaler::unchecked(options);
}

}  // namespace thinwire::deepspeed
