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

/// Returns the texts of all ranks, in rank order. Collective.
using comm::gather_texts;
/// Returns rank 0's text. Collective.
[[nodiscard]] std::string broadcast_text(comm::Communicator& comm,
                                         const std::string& text);
/// Returns the sum of all ranks' numbers. Collective.
[[nodiscard]] std::uint64_t sum_over_ranks(comm::Communicator& comm,
                                           std::uint64_t own);
/// Calls `body` on every rank. If it throws on some ranks, all ranks throw the
/// Error of the lowest of them, prefixed with "rank R: ". Collective.
void everywhere(comm::Communicator& comm, const std::function<void()>& body);

/// The ranks that write into one directory: all ranks, or the ranks of one
/// host.
struct Directories {
  std::vector<int> leaders;        ///< For each rank, the rank that makes its
                                   ///< directory.
  std::vector<std::string> hosts;  ///< For each rank.
};
/// Returns rank 0 as the leader of all ranks if storage is shared, and
/// otherwise the lowest rank of each host. Collective.
[[nodiscard]] Directories find_directories(comm::Communicator& comm,
                                           Storage storage);

/// Returns the ids of the checkpoints whose files are spread over the leaders'
/// directories and are all there. Collective.
[[nodiscard]] std::set<std::string> find_in_parts(comm::Communicator& comm,
                                                  const RootDirectory& root,
                                                  bool leads);

}  // namespace thinwire::checkpoint
