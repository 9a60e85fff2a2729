// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/precision/loss_scaler.h"

namespace thinwire::deepspeed {

/// Returns the settings as DeepSpeed's ZeRO reads them: without an upper bound.
[[nodiscard]] precision::LossScalerOptions zero_loss_scaler(
    precision::LossScalerOptions options);
/// Returns the settings as DeepSpeed's FP16 wrappers, fused and unfused, read
/// them. They have no upper bound and no hysteresis, and the scale stops at the
/// minimum.
[[nodiscard]] precision::LossScalerOptions wrapper_loss_scaler(
    precision::LossScalerOptions options);

/// Returns DeepSpeed's scaler with these settings; its scale equals DeepSpeed's
/// after every step. Thinwire's own scaler rejects two settings that this one
/// accepts. With a hysteresis of 0 the scale never falls. If min_scale exceeds
/// initial_scale, an overflow raises the scale to min_scale. Throws
/// Error(kInvalidArgument) with the field, its range and its value.
[[nodiscard]] precision::LossScaler loss_scaler(
    const precision::LossScalerOptions& options);

}  // namespace thinwire::deepspeed
