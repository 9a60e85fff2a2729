// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "checkpoint/disk/file_system.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::checkpoint {

/// What rank 0 tells the others about a checkpoint that it has begun.
struct Announcement {
  std::string partial;  ///< Directory in ROOT, with a probe in it.
  std::string host;
  std::int64_t step = 0;
  std::int64_t save_index = 0;
};
/// Collective: rank 0's.
[[nodiscard]] Announcement broadcast_announcement(comm::Communicator& comm,
                                                  const Announcement& own);

/// This machine's name.
[[nodiscard]] std::string host_name();

/// Returns once the probe that rank 0 made in `root` can be opened. Where it is
/// not there for as long as `patience`: Error(kUnavailable), `root` is not
/// shared.
void wait_for_probe(FileSystem& files, const std::string& root,
                    const Announcement& made, int rank,
                    std::chrono::milliseconds patience);

}  // namespace thinwire::checkpoint
