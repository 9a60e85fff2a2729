// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"

namespace thinwire::checkpoint {

/// All of a file. Throws Error(kUnavailable), and Error(kCorruptCheckpoint)
/// beyond `most_bytes`.
[[nodiscard]] std::string read_text(FileSystem& files, const std::string& path,
                                    bool follows_links,
                                    std::uint64_t most_bytes);

/// DIRECTORY/manifest.json, parsed.
[[nodiscard]] Manifest read_manifest(FileSystem& files,
                                     const std::string& directory);

}  // namespace thinwire::checkpoint
