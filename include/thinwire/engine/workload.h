// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/config/config.h"
#include "thinwire/engine/planner.h"

namespace thinwire::engine {

/// `work`, of which the times of one forward and one backward are known, with
/// what a configuration says of dtypes, buckets and backwards per step on so
/// many ranks. Local. Throws as Config::validate.
[[nodiscard]] Workload workload_of(const config::Config& config, int ranks,
                                   Workload work);

}  // namespace thinwire::engine
