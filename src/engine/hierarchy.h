// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "thinwire/comm/communicator.h"
#include "thinwire/config/config.h"

namespace thinwire::engine {

/// Collective: the same ranks with collectives by host, where `config` asks for
/// that; null: flat. Throws Error(kInvalidArgument) on all ranks where it
/// demands what the ranks' places do not allow.
[[nodiscard]] std::unique_ptr<comm::Communicator> by_host(
    comm::Communicator& comm, const config::Config& config);

}  // namespace thinwire::engine
