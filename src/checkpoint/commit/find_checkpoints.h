// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "checkpoint/commit/root.h"
#include "checkpoint/commit/root_directory.h"

namespace thinwire::checkpoint {

/// Whether ROOT/NAME is a checkpoint. Its manifest is there wherever it
/// verifies itself, though files may be missing. Throws Error(kUnavailable)
/// where it cannot be read, which says nothing about what it is.
[[nodiscard]] FoundCheckpoint look_at(FileSystem& files,
                                      const std::string& root,
                                      const std::string& name);

/// Looks at a checkpoint for hosts that may each have a directory. It is
/// complete if the hosts together have all of it (RootDirectory::in_parts).
[[nodiscard]] FoundCheckpoint look_at(const RootDirectory& root,
                                      const std::string& name);
[[nodiscard]] std::vector<FoundCheckpoint> find_checkpoints(
    const RootDirectory& root);

/// Every file is there, a regular one, and of the listed size. Throws
/// Error(kCorruptCheckpoint) naming the first that is not.
void require_files(FileSystem& files, const std::string& directory,
                   const Manifest& manifest);

}  // namespace thinwire::checkpoint
