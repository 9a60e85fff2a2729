// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "checkpoint/disk/file_system.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::checkpoint {

/// What rank 0 tells the others about a checkpoint that is to be written.
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
/// Where it is not there for as long as `patience`: Error(kUnavailable), `root`
/// is not shared.
void wait_for_probe(FileSystem& files, const std::string& root,
                    const Announcement& made, const RankOnHost& own,
                    const RankOnHost& maker,
                    std::chrono::milliseconds patience);

}  // namespace thinwire::checkpoint
