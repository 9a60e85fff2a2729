// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/commit/root_directory.h"
#include "thinwire/checkpoint/checkpoint.h"

namespace thinwire::checkpoint {

/// An entry of a directory of checkpoints, as one rank found it.
struct FoundCheckpoint {
  std::string name;       ///< Name of the directory.
  bool complete = false;  ///< It has a manifest that verifies itself, and files
                          ///< of the sizes that it lists.
  std::string problem{};  ///< Why it is not.
  /// The problem is that it cannot be read just now: it may be complete.
  bool unreadable = false;
  Manifest manifest{};  ///< Set if complete.
};
/// Newest first, by save_index; those that are not complete last. Local;
/// changes nothing.
[[nodiscard]] std::vector<FoundCheckpoint> find_checkpoints(
    FileSystem& files, const std::string& root);

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

/// Throws Error(kUnavailable) if an entry cannot be read, with the entry's
/// problem: it may be the newest checkpoint.
void require_readable(const std::vector<FoundCheckpoint>& found);

/// Throws Error(kInvalidArgument) if the path is empty or contains a NUL.
void require_path(std::string_view name, const std::string& path);

/// Returns the size of a regular file. Throws Error(kCorruptCheckpoint) if it
/// is missing or something else. `writer` is the host that wrote it, where each
/// has a directory.
std::uint64_t require_regular(FileSystem& files, const std::string& path,
                              const std::string& writer = {});

/// Every file is there, a regular one, and of the listed size. Throws
/// Error(kCorruptCheckpoint) naming the first that is not.
void require_files(FileSystem& files, const std::string& directory,
                   const Manifest& manifest);

/// The checkpoint from which a run was resumed.
struct LoadedFrom {
  std::string name{};             ///< In this directory; empty: none.
  std::int64_t newest_index = 0;  ///< save_index of the newest one then.
};

/// Returns the names of checkpoints in `found` (newest first) to remove. These
/// are complete, of this run, have the library's names, and are not kept by
/// `which`. The newest one with finite parameters always stays, because no run
/// can continue from the others. `loaded_from` stays until two checkpoints
/// saved after the load are complete. Any that were newer belong to a branch
/// that the run has left.
[[nodiscard]] std::vector<std::string> superfluous(
    const std::vector<FoundCheckpoint>& found, const std::string& run,
    const Retention& which, const LoadedFrom& loaded_from);

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
