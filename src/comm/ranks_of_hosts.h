// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "thinwire/comm/hosts.h"

namespace thinwire::comm {

/// Returns the ranks of every host in ascending order, with hosts in the order
/// of their lowest ranks. Unlike in find_hosts(), hosts may have different
/// numbers of ranks, and one host may have all ranks. Collective.
[[nodiscard]] std::vector<std::vector<int>> ranks_of_hosts(
    Communicator& comm, const HostOptions& options = {});

}  // namespace thinwire::comm
