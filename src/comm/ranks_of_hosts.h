// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "thinwire/comm/hosts.h"

namespace thinwire::comm {

/// Collective: returns the ranks of every host in their order, hosts in the
/// order of their lowest ranks. Unlike in find_hosts(), hosts may hold any
/// numbers of ranks, and one may hold all.
[[nodiscard]] std::vector<std::vector<int>> ranks_of_hosts(
    Communicator& comm, const HostOptions& options = {});

}  // namespace thinwire::comm
