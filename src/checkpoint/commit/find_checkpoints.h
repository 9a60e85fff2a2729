// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/commit/root_directory.h"
#include "thinwire/checkpoint/checkpoint.h"

namespace thinwire::checkpoint {

/// An entry of a directory of checkpoints, as seen by one rank.
struct FoundCheckpoint {
  std::string name;       ///< Name of the directory.
  bool complete = false;  ///< Whether it has a manifest with the right hash,
                          ///< and files of the sizes in that manifest.
  std::string problem{};  ///< The reason if it is not complete.
  /// Whether it cannot be read at the moment. It may be complete.
  bool unreadable = false;
  Manifest manifest{};  ///< Set if complete.
};
/// Returns the complete checkpoints, newest save_index first, and then the
/// incomplete ones. Local, and changes nothing.
[[nodiscard]] std::vector<FoundCheckpoint> find_checkpoints(
    FileSystem& files, const std::string& root);

/// Looks at ROOT/NAME. The manifest is set if its hash is right, even if files
/// are missing. Throws Error(kUnavailable) if the manifest cannot be read,
/// because then nothing is known about the entry.
[[nodiscard]] FoundCheckpoint look_at(FileSystem& files,
                                      const std::string& root,
                                      const std::string& name);

/// Looks at a checkpoint for hosts that may each have a directory. It is
/// complete if the hosts together have all of it (RootDirectory::in_parts).
[[nodiscard]] FoundCheckpoint look_at(const RootDirectory& root,
                                      const std::string& name);
[[nodiscard]] std::vector<FoundCheckpoint> find_checkpoints(
    const RootDirectory& root);

/// Throws Error(kUnavailable) with the problem of the first entry that cannot
/// be read, because it may be the newest checkpoint.
void require_readable(const std::vector<FoundCheckpoint>& found);

/// Throws Error(kInvalidArgument) if the path is empty or contains a NUL.
void require_path(std::string_view name, const std::string& path);

/// Returns the size of a regular file. Throws Error(kCorruptCheckpoint) if it
/// is missing or something else. `writer` is the host that wrote it, if each
/// host has its own directory.
std::uint64_t require_regular(FileSystem& files, const std::string& path,
                              const std::string& writer = {});

/// Throws Error(kCorruptCheckpoint) unless all files are regular files of the
/// listed sizes. The error names the first that is not.
void require_files(FileSystem& files, const std::string& directory,
                   const Manifest& manifest);

/// The checkpoint from which a run was resumed.
struct LoadedFrom {
  std::string name{};             ///< In this directory, or empty if there is
                                  ///< none.
  std::int64_t newest_index = 0;  ///< The highest save_index at that time.
};

/// Returns the names of the checkpoints in `found` (newest first) that may be
/// removed. They are complete, belong to this run, have the library's names,
/// and are not kept by `which`. The newest one with finite parameters always
/// stays, because no run can continue from the others. `loaded_from` stays
/// until two checkpoints saved after the load are complete. Newer checkpoints
/// from before the load belong to a branch that the run has left.
[[nodiscard]] std::vector<std::string> superfluous(
    const std::vector<FoundCheckpoint>& found, const std::string& run,
    const Retention& which, const LoadedFrom& loaded_from);

/// The checkpoints at a path given by the user.
struct Located {
  bool is_root = false;  ///< Whether the path is a directory of checkpoints.
  std::string root{};    ///< Directory that contains `checkpoints`.
  /// The one checkpoint, or all checkpoints of the ROOT, newest first and
  /// incomplete ones last.
  std::vector<FoundCheckpoint> checkpoints{};

  [[nodiscard]] std::string path_of(const FoundCheckpoint& one) const {
    return root + "/" + one.name;
  }
};
/// Finds the checkpoints at a path. Throws Error(kUnavailable) if there is not
/// even an incomplete one. Local.
[[nodiscard]] Located locate(FileSystem& files, const std::string& path);
/// Returns the directory of the checkpoint, or of the newest in a ROOT. Throws
/// Error(kUnavailable) also if no checkpoint is complete.
[[nodiscard]] std::string complete_one(FileSystem& files,
                                       const std::string& path);

}  // namespace thinwire::checkpoint
