// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "checkpoint/commit/root_directory.h"
#include "checkpoint/format/manifest.h"

namespace thinwire::checkpoint {

/// Rank 0's: the files of a partial directory become a checkpoint. If it
/// throws before the directory has its final name, what had that name has it
/// again, and the partial directory is to be removed; later the new checkpoint
/// stays. A checkpoint of this run that had the name is removed in the end.
void commit(const RootDirectory& root, const std::string& partial,
            const Manifest& manifest);

}  // namespace thinwire::checkpoint
