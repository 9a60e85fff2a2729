// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "checkpoint/disk/file_system.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::checkpoint {

/// Rank 0's message to the others before a checkpoint is written.
struct Announcement {
  std::string partial;  ///< Directory in ROOT.
  std::int64_t step = 0;
  std::int64_t save_index = 0;
};
/// Collective: rank 0's.
[[nodiscard]] Announcement broadcast_announcement(comm::Communicator& comm,
                                                  const Announcement& own);

/// A rank, and the machine that it is on.
struct RankOnHost {
  int rank = 0;
  std::string host;
};
/// Returns once `own` can open the probe that `maker` made in ROOT/partial.
/// Throws Error(kUnavailable) if the probe does not appear within `patience`,
/// because `root` is then not shared.
void wait_for_probe(FileSystem& files, const std::string& root,
                    const Announcement& made, const RankOnHost& own,
                    const RankOnHost& maker,
                    std::chrono::milliseconds patience);

}  // namespace thinwire::checkpoint
