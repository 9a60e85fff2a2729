// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

struct HostOptions {
  /// Number of ranks on each host, in rank order; >= 0. 1 means flat, as if
  /// every rank were on a separate host. 0 stands for THINWIRE_RANKS_PER_HOST
  /// or, if that is not set, for detection.
  int ranks_per_host = 0;
};

/// Reason for a flat result although ranks share hosts.
struct WhyFlat {
  enum class Reason {
    kNone,           ///< Not flat, or every rank is on a separate host.
    kOneHost,        ///< All ranks share one host.
    kUnequalHosts,   ///< Hosts hold unequal numbers of ranks.
    kContradiction,  ///< A launcher announced other hosts than were detected.
  };
  Reason reason = Reason::kNone;
  std::string text{};  ///< The reason in words; "" with kNone.

  bool operator==(const WhyFlat&) const = default;
};

/// Finds the ranks that share a host, and therefore a network card. Collective.
/// A number in `options` or else in THINWIRE_RANKS_PER_HOST overrides
/// detection: ranks 0 .. G-1 are host 0, and so on. If detection would give
/// another result, rank 0 logs a line. Otherwise ranks with the same boot id
/// share a host, or those with the same host name if the system has no boot id.
///
/// The result is flat if every rank is on a separate host, all ranks share one
/// host, or hosts have unequal numbers of ranks. It is also flat if a launcher
/// announced a different number of ranks per host than was detected, which
/// happens with containers on one machine. Rank 0 then logs a warning. `why`,
/// if given, receives the reason. Ranks of the backend "local" share one host.
///
/// Throws Error(kInvalidArgument) on all ranks if an option is out of range or
/// differs between ranks. It also throws this error if the number of ranks is
/// not a multiple of ranks_per_host.
[[nodiscard]] Hosts find_hosts(Communicator& comm,
                               const HostOptions& options = {},
                               WhyFlat* why = nullptr);

/// Returns a checksum of the boot id, or of the host name if the system has no
/// boot id. It is equal in all processes of this machine, regardless of their
/// configured hosts. Local.
[[nodiscard]] std::int64_t machine_id();

/// Returns the rank at each place p = l * H + h: local rank 0 of all hosts,
/// then local rank 1, and so on. If flat, returns all hosts.size ranks in their
/// order. Local.
[[nodiscard]] std::vector<int> ranks_by_place(const Hosts& hosts);

/// The two groups of a rank that split_by_host() creates.
struct HostGroups {
  /// Group of the ranks of this host.
  std::unique_ptr<Communicator> inside;
  /// Group of one rank per host: the ranks with this rank's local_rank.
  std::unique_ptr<Communicator> between;
};

/// Splits `comm` by comm.hosts(). Collective. comm.counters() includes the
/// traffic of both groups; that of `inside` does not count as traffic between
/// hosts. If flat, `inside` contains only this rank, and `between` contains all
/// ranks. Time-outs are that of `comm`, plus `later` for `between` and twice
/// `later` for `inside`.
[[nodiscard]] HostGroups split_by_host(Communicator& comm,
                                       std::chrono::milliseconds later = {});

}  // namespace thinwire::comm
