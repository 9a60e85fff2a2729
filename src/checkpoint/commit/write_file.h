// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "checkpoint/commit/root.h"
#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"

namespace thinwire::checkpoint {

/// Destination of a rank's files, and the observer of their chunks.
struct Destination {
  FileSystem& files;
  std::string directory;
  bool durable = true;
  std::function<void(std::uint64_t bytes)> wrote;  ///< Since the last call.
};

/// Writes a new file piece by piece, hashed on the way. The name is
/// not on the disk before the directory is synced.
[[nodiscard]] SavedFile write_file(const Destination& to,
                                   const PlannedFile& planned);
[[nodiscard]] SavedFile write_file(const Destination& to,
                                   const Attachment& attachment);

}  // namespace thinwire::checkpoint
