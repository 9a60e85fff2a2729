// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "checkpoint/disk/file_system.h"

namespace thinwire::checkpoint {

/// Throws Error(kInvalidArgument) if a directory is a checkpoint of DeepSpeed
/// or contains one. The message has the commands that convert it. Local.
void refuse_deepspeed(FileSystem& files, const std::string& path);

}  // namespace thinwire::checkpoint
