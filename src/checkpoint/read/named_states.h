// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/disk/file_system.h"
#include "checkpoint/format/manifest.h"

namespace thinwire::checkpoint {

/// Beside weights that others wrote: tensors exp_avg/NAME, exp_avg_sq/NAME and,
/// where there are some, masters/NAME of each parameter, fp32 and in its shape,
/// and the int64 "step". What `thinwire checkpoint export --states` writes.
inline constexpr std::string_view kNamedStates = "optimizer.safetensors";

/// Adds what the file holds to a manifest that has the parameters: arrays and
/// scalars, as Adam's or LAMB's checkpoint has them, but for the optimizer and
/// its learning rates. Throws Error(kCorruptCheckpoint) naming the file.
void describe_named_states(FileSystem& files, const std::string& directory,
                           Manifest& manifest);

}  // namespace thinwire::checkpoint
