// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "checkpoint/commit/root.h"
#include "checkpoint/disk/file_system.h"

namespace thinwire::checkpoint {

/// The checkpoints at a path that a user typed.
struct Located {
  bool is_root = false;  ///< A directory of checkpoints, not one of them.
  std::string root{};    ///< Directory of the names below.
  /// The one checkpoint, or all of the ROOT, newest first and incomplete ones
  /// last.
  std::vector<FoundCheckpoint> checkpoints{};

  [[nodiscard]] std::string path_of(const FoundCheckpoint& one) const {
    return root + "/" + one.name;
  }
};
/// Local. Throws Error(kUnavailable) where there is no checkpoint, not even an
/// incomplete one.
[[nodiscard]] Located locate(FileSystem& files, const std::string& path);
/// The directory of the checkpoint, or of a ROOT's newest. Throws
/// Error(kUnavailable) also where none is complete.
[[nodiscard]] std::string complete_one(FileSystem& files,
                                       const std::string& path);

}  // namespace thinwire::checkpoint
