// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "thinwire/comm/communicator.h"
#include "thinwire/config/config.h"

namespace thinwire::engine {

/// Returns the configuration of an engine of leaders, each of which steps for
/// all ranks of its host. `world` is the number of these ranks on all hosts,
/// and a multiple of `ranks_per_host`. The engine is that of one rank per host
/// that accumulates the backwards of its host's ranks. Throws
/// Error(kInvalidArgument) like Config::batch().
[[nodiscard]] config::Config config_of_leaders(const config::Config& config,
                                               int world, int ranks_per_host);

/// Returns Engine::mean() over ranks that may have no engine, and have made
/// `steps` steps.
[[nodiscard]] double mean(comm::Communicator& comm, std::int64_t steps,
                          double value);

}  // namespace thinwire::engine
