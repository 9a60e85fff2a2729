// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/precision/loss_scaler.h"

namespace thinwire::deepspeed {

/// Settings as DeepSpeed's ZeRO reads them: without an upper bound.
[[nodiscard]] precision::LossScalerOptions zero_loss_scaler(
    precision::LossScalerOptions options);
/// As its fused and unfused FP16 wrappers read them: no hysteresis either, and
/// the scale is held at the minimum.
[[nodiscard]] precision::LossScalerOptions wrapper_loss_scaler(
    precision::LossScalerOptions options);

/// DeepSpeed's scaler with these settings, trace by trace. Unlike ours it takes
/// a hysteresis of 0, with which the scale never falls, and a min_scale above
/// initial_scale, to which an overflow then raises the scale. Throws
/// Error(kInvalidArgument) naming the field, its range and its value.
[[nodiscard]] precision::LossScaler loss_scaler(
    const precision::LossScalerOptions& options);

}  // namespace thinwire::deepspeed
