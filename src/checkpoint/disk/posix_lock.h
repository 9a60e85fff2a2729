// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "checkpoint/disk/file_system.h"

namespace thinwire::checkpoint::posix {

/// FileSystem::lock() by flock(2), which the kernel releases when a process
/// dies.
[[nodiscard]] std::unique_ptr<FileSystem::Lock> lock(const std::string& path,
                                                     const std::string& owner);

}  // namespace thinwire::checkpoint::posix
