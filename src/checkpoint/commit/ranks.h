// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/commit/root_directory.h"
#include "thinwire/checkpoint/options.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::checkpoint {

/// Collective: every rank's text, in rank order.
using comm::gather_texts;
/// Collective: rank 0's text.
[[nodiscard]] std::string broadcast_text(comm::Communicator& comm,
                                         const std::string& text);
/// Collective.
[[nodiscard]] std::uint64_t sum_over_ranks(comm::Communicator& comm,
                                           std::uint64_t own);
/// Collective: calls `body` on every rank; where it threw on one, all throw the
/// lowest one's Error, with "rank R: " in front.
void everywhere(comm::Communicator& comm, const std::function<void()>& body);

/// Which ranks write into one directory: all of them, or those of a host.
struct Directories {
  std::vector<int> leaders;  ///< Per rank: the rank that makes its directory.
  std::vector<std::string> hosts;  ///< One per rank.
};
/// Collective: rank 0 leads all where storage is shared, else the lowest rank
/// of each host.
[[nodiscard]] Directories find_directories(comm::Communicator& comm,
                                           Storage storage);

/// Collective: ids of the checkpoints of which the leaders' directories have
/// all files among them, each some.
[[nodiscard]] std::set<std::string> find_in_parts(comm::Communicator& comm,
                                                  const RootDirectory& root,
                                                  bool leads);

}  // namespace thinwire::checkpoint
