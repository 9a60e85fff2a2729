// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

/// Returns the communicators of `world_size` ranks that are threads of this
/// process; element r belongs to rank r. Intended for tests, tools and
/// notebooks. Throws Error(kInvalidArgument) unless world_size >= 1.
[[nodiscard]] std::vector<std::unique_ptr<Communicator>> make_local_group(
    int world_size, const CommunicatorOptions& options = {});

/// Calls body(communicator) once per rank, each on a separate thread, and
/// returns after all have ended. If a rank throws, the others throw
/// Error(kCommFailure) at their next exchange with it. The exception of the
/// rank that threw first is rethrown to the caller.
void run_local_ranks(int world_size,
                     const std::function<void(Communicator&)>& body,
                     const CommunicatorOptions& options = {});

}  // namespace thinwire::comm
