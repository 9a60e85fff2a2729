// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"

namespace thinwire::checkpoint {

/// The file of states beside weights of other programs, which `thinwire
/// checkpoint export --states` writes. It has the tensors exp_avg/NAME,
/// exp_avg_sq/NAME and, if there are masters, masters/NAME of each parameter,
/// in fp32 and its shape. It also has the int64 "step".
inline constexpr std::string_view kNamedStates = "optimizer.safetensors";

/// Adds the file's arrays and scalars to a manifest that has the parameters.
/// They are those of an Adam or LAMB checkpoint, except the optimizer and its
/// learning rates. Throws Error(kCorruptCheckpoint), which names the file.
void describe_named_states(FileSystem& files, const std::string& directory,
                           Manifest& manifest);

}  // namespace thinwire::checkpoint
