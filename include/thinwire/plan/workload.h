// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "thinwire/config/config.h"
#include "thinwire/plan/planner.h"

namespace thinwire::plan {

/// Returns `work`, which has the times of one forward and one backward, with
/// the dtypes, buckets and backwards per step of a configuration. Throws like
/// Config::validate() for this number of ranks. Local.
[[nodiscard]] Workload workload_of(const config::Config& config, int ranks,
                                   Workload work);

/// Returns `work` with a run of `total_steps`. Its stages end at `freeze_step`
/// if it is given, or else at the steps that `config` (may be null) names. If
/// neither names them, the rule of optim/run_length.h decides. `warmup_bits` is
/// chosen in the same way, except that a given `freeze_step` means exact
/// averages. steps_per_sync is 0/1 Adam's longest interval.
/// Workload::validate() checks the values. Local.
[[nodiscard]] Workload workload_of_run(Workload work, std::int64_t total_steps,
                                       std::optional<std::int64_t> freeze_step,
                                       std::optional<int> warmup_bits,
                                       const config::Config* config);

}  // namespace thinwire::plan
