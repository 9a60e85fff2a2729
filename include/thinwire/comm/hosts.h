// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

struct HostOptions {
  /// Ranks on each host, in rank order; >= 0. 0: as THINWIRE_RANKS_PER_HOST
  /// says, else found out; 1: flat, as if every rank had a host of its own.
  int ranks_per_host = 0;
};

/// Why hosts are flat though ranks share some.
struct WhyFlat {
  enum class Reason {
    kNone,           ///< They are not, or every rank has a host of its own.
    kOneHost,        ///< All ranks share it.
    kUnequalHosts,   ///< Hosts hold unequal numbers of ranks.
    kContradiction,  ///< A launcher announced other hosts than were found.
  };
  Reason reason = Reason::kNone;
  std::string text{};  ///< The same for people; "" with kNone.

  bool operator==(const WhyFlat&) const = default;
};

/// Collective: which ranks share a host, and so a network card. What
/// `options` or, after it, THINWIRE_RANKS_PER_HOST say counts as it is: ranks
/// 0 .. G-1 are host 0, and so on; where that is not what would have been found
/// out, rank 0 logs a line. Otherwise ranks with the same boot id, or host name
/// where the system has none, share one.
///
/// The result is flat if every rank has a host of its own, all ranks share one
/// host, hosts hold unequal numbers of ranks, or a launcher announced another
/// number of ranks on a host than was found out, as for containers that share a
/// machine; in this last case rank 0 logs a warning. `why`, if given, says
/// which. Ranks of the backend "local" share one.
///
/// Throws Error(kInvalidArgument) on all ranks: for options out of range or not
/// the same everywhere, and if the number of ranks is no multiple of
/// ranks_per_host.
[[nodiscard]] Hosts find_hosts(Communicator& comm,
                               const HostOptions& options = {},
                               WhyFlat* why = nullptr);

/// Local: the same in all processes of this machine, whatever they are told of
/// hosts: a checksum of the boot id, or host name where the system has none.
[[nodiscard]] std::int64_t machine_id();

/// The rank at each place p = l * H + h: local rank 0 of all hosts, then local
/// rank 1, ... Flat: all of hosts.size ranks, in their order. Local.
[[nodiscard]] std::vector<int> ranks_by_place(const Hosts& hosts);

/// The groups of one rank in a HostGroups.
struct HostGroups {
  /// The ranks of this host.
  std::unique_ptr<Communicator> inside;
  /// One rank of each host: those with this rank's local_rank.
  std::unique_ptr<Communicator> between;
};

/// Collective: splits `comm` by comm.hosts(). What the groups do counts in
/// comm.counters() too; of what `inside` sends, nothing is between hosts. Flat:
/// `inside` is this rank alone, `between` all ranks.
[[nodiscard]] HostGroups split_by_host(Communicator& comm);

}  // namespace thinwire::comm
