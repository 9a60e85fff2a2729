// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "apps/thinwire/replay/replay.h"

namespace thinwire::replay {

/// Returns whether the folder holds traces of loss scalers.
[[nodiscard]] bool holds_loss_scalers(const std::filesystem::path& folder);

/// Returns one case per row of its files, named "<name>/dynamic.17".
[[nodiscard]] std::vector<CaseFolder> loss_scaler_cases(
    const CaseFolder& folder);

/// Feeds a row's overflows to a LossScaler and compares every scale. Throws
/// Unsupported, or BrokenCase if files are inconsistent.
[[nodiscard]] Result replay_loss_scaler(const CaseFolder& row);

}  // namespace thinwire::replay
