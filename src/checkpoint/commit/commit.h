// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/commit/root_directory.h"

/// The three steps of a commit, in this order. If each host has its own
/// directory, the hosts agree after every step. If publish() throws before the
/// directory has its final name, the older entry gets its name back. If it
/// throws later, the new checkpoint stays.
namespace thinwire::checkpoint {

/// Writes the manifest, which turns the partial directory into a checkpoint or
/// this host's part of a checkpoint.
void put_manifest(const RootDirectory& root, const std::string& partial,
                  const std::string& manifest);
/// Gives the directory its final name. Returns the new name of the entry that
/// had this name, or an empty text.
[[nodiscard]] std::string publish(const RootDirectory& root,
                                  const std::string& partial,
                                  std::int64_t step);
/// Removes the replaced entry if it was a checkpoint of this run. Logs errors.
void remove_replaced(const RootDirectory& root, const std::string& replaced);

/// Tidies a ROOT after a crash. Complete checkpoints get their final names.
/// Incomplete checkpoints of this run are removed, and so are unfinished saves
/// and removals of any run. If other hosts may have the rest of a checkpoint,
/// its part is removed only once a newer one is complete. Damaged remains of
/// another run are logged and stay. Without the lock everything of another run
/// stays, because that run may be alive.
void tidy(const RootDirectory& root, bool has_lock);

}  // namespace thinwire::checkpoint
