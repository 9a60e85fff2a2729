// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/commit/root_directory.h"

/// The three steps of a commit, one after the other; hosts that have a
/// directory each agree after every one. If publish() throws before the
/// directory has its final name, an older entry has that name again. If it
/// throws later, the new checkpoint stays.
namespace thinwire::checkpoint {

/// From here on the partial directory is a checkpoint, or this host's part of
/// one.
void put_manifest(const RootDirectory& root, const std::string& partial,
                  const std::string& manifest);
/// It gets its final name; returns that of what made way for it, or nothing.
[[nodiscard]] std::string publish(const RootDirectory& root,
                                  const std::string& partial,
                                  std::int64_t step);
/// Removes it, if it was a checkpoint of this run. Logs what goes wrong.
void remove_replaced(const RootDirectory& root, const std::string& replaced);

/// Tidies a ROOT after a crash. Complete checkpoints get their final names.
/// Incomplete ones of this run, and unfinished saves and removals of any run,
/// are removed. If other hosts may have the rest of a checkpoint, its part is
/// removed only once a newer one is complete. Damaged leftovers of another run
/// are logged and stay. Without the lock, everything of another run stays,
/// because that run may be alive.
void tidy(const RootDirectory& root, bool has_lock);

}  // namespace thinwire::checkpoint
