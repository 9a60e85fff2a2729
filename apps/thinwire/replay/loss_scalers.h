// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "apps/thinwire/replay/replay.h"

namespace thinwire::replay {

/// The folder holds traces of loss scalers: one case per row of its files.
[[nodiscard]] bool holds_loss_scalers(const std::filesystem::path& folder);

/// One case per row, named "<name>/dynamic.17".
[[nodiscard]] std::vector<CaseFolder> loss_scaler_cases(
    const CaseFolder& folder);

/// Feeds a row's overflows to a LossScaler and compares every scale. Throws
/// Unsupported, or BrokenCase for files that do not hold together.
[[nodiscard]] Result replay_loss_scaler(const CaseFolder& row);

}  // namespace thinwire::replay
