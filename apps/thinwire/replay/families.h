// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/thinwire/replay/comparison.h"
#include "apps/thinwire/replay/recorded_case.h"
#include "apps/thinwire/replay/replay.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/config/semantics.h"

namespace thinwire::replay {

/// Runs a case on this rank of `comm`, whose size is the case's world, and
/// compares everything that was recorded. Throws Unsupported before any
/// exchange if it does not understand the case.
using Family = void(const RecordedCase& recorded, comm::Communicator& comm,
                    config::Semantics semantics, Comparison& comparison);
Family replay_onebit_adam, replay_onebit_lamb, replay_zero_one_adam,
    replay_zero, replay_compressed_all_reduce;

/// Returns whether the folder holds traces of loss scalers.
[[nodiscard]] bool holds_loss_scalers(const std::filesystem::path& folder);

/// Returns one case per row of its files, named "<name>/dynamic.17".
[[nodiscard]] std::vector<CaseFolder> loss_scaler_cases(
    const CaseFolder& folder);

/// Feeds a row's overflows to a LossScaler and compares every scale. Throws
/// Unsupported, or BrokenCase if files are inconsistent.
[[nodiscard]] Result replay_loss_scaler(const CaseFolder& row);

}  // namespace thinwire::replay
