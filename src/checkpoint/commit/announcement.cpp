// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/commit/announcement.h"

#include <fmt/format.h>

#include <sstream>

#include "checkpoint/commit/root.h"
#include "checkpoint/commit/root_directory.h"
#include "checkpoint/disk/keep_looking.h"
#include "thinwire/core/error.h"

namespace thinwire::checkpoint {

Announcement broadcast_announcement(comm::Communicator& comm,
                                    const Announcement& own) {
  std::istringstream text(broadcast_text(
      comm, fmt::format("{}\n{}\n{}", own.step, own.save_index, own.partial)));
  Announcement result;
  text >> result.step >> result.save_index >> result.partial;
  return result;
}

void wait_for_probe(FileSystem& files, const std::string& root,
                    const Announcement& made, const RankOnHost& own,
                    const RankOnHost& maker,
                    std::chrono::milliseconds patience) {
  const std::string probe =
      fmt::format("{}/{}/{}", root, made.partial, kProbeName);
  if (!keep_looking(files, patience, [&] { return files.exists(probe); }))
    throw Error(ErrorCode::kUnavailable,
                fmt::format("{} is not shared: rank {} on host {} does not see "
                            "the file that rank {} on host {} wrote",
                            root, own.rank, own.host, maker.rank, maker.host));
  files.open(probe, /*follows_links=*/false)->close();
}

}  // namespace thinwire::checkpoint
