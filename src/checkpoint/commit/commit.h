// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/commit/root_directory.h"
#include "checkpoint/format/manifest.h"

namespace thinwire::checkpoint {

/// The steps of commit(), for hosts that have a directory each and agree after
/// every one. From here on the partial directory is this host's part of a
/// checkpoint.
void put_manifest(const RootDirectory& root, const std::string& partial,
                  const std::string& manifest);
/// It gets its final name; returns that of what made way for it, or nothing.
[[nodiscard]] std::string publish(const RootDirectory& root,
                                  const std::string& partial,
                                  std::int64_t step);
/// Removes it, if it was a checkpoint of this run. Logs what goes wrong.
void remove_replaced(const RootDirectory& root, const std::string& replaced);

/// Makes a checkpoint of the files in a partial directory, on rank 0. If it
/// throws before the directory has its final name, an older entry has that name
/// again, and the caller removes the partial directory. If it throws later, the
/// new checkpoint stays. An older checkpoint of this run under the same name is
/// removed at the end.
void commit(const RootDirectory& root, const std::string& partial,
            const Manifest& manifest);

}  // namespace thinwire::checkpoint
