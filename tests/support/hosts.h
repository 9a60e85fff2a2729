// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"

namespace thinwire::test {

/// Splits as if ranks 0 .. G-1 were on host 0, and so on. Collective.
inline comm::HostGroups split_into_hosts(comm::Communicator& comm,
                                         int ranks_per_host) {
  const int host = comm.rank() / ranks_per_host;
  const int local_rank = comm.rank() % ranks_per_host;
  comm::HostGroups groups;
  groups.inside = comm.split(host, local_rank);
  groups.between = comm.split(local_rank, host);
  return groups;
}

/// How ranks are placed on hosts: {0 1} {2 3}, or {0 2} {1 3}.
enum class Placing { kBlocks, kRoundRobin };

/// Returns the hosts of `world` ranks as rank `rank` knows them.
inline comm::Hosts hosts_of(int world, int ranks_per_host, Placing placing,
                            int rank) {
  if (ranks_per_host == 1) return {.size = world, .index = rank};
  const int hosts = world / ranks_per_host;
  comm::Hosts result{.size = hosts, .ranks_per_host = ranks_per_host};
  for (int h = 0; h < hosts; ++h) {
    for (int l = 0; l < ranks_per_host; ++l) {
      const int member =
          placing == Placing::kBlocks ? h * ranks_per_host + l : l * hosts + h;
      result.ranks.push_back(member);
      if (member != rank) continue;
      result.index = h;
      result.local_rank = l;
    }
  }
  return result;
}

}  // namespace thinwire::test
