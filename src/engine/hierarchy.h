// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "thinwire/comm/communicator.h"
#include "thinwire/config/config.h"

namespace thinwire::engine {

/// Returns the same ranks with hierarchical collectives, or null if `config` or
/// the hosts make the exchange flat. Collective. Throws Error(kInvalidArgument)
/// on all ranks if `config` requires a hierarchy that the hosts do not allow.
[[nodiscard]] std::unique_ptr<comm::Communicator> by_host(
    comm::Communicator& comm, const config::Config& config);

}  // namespace thinwire::engine
