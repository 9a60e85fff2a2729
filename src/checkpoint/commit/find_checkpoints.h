// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "checkpoint/commit/root.h"

namespace thinwire::checkpoint {

/// Whether ROOT/NAME is a checkpoint. Its manifest is there wherever it
/// verifies itself, though files may be missing. Throws Error(kUnavailable)
/// where it cannot be read, which says nothing about what it is.
[[nodiscard]] FoundCheckpoint look_at(FileSystem& files,
                                      const std::string& root,
                                      const std::string& name);

}  // namespace thinwire::checkpoint
