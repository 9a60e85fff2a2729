// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "checkpoint/commit/root_directory.h"

namespace thinwire::checkpoint {

/// Tidies a ROOT after a crash. Complete checkpoints get their final names.
/// Incomplete ones of this run are removed. If other hosts may have the rest of
/// a checkpoint, its part is removed only once a newer one is complete.
/// Leftovers of another run are logged and stay. Adopting them needs the lock,
/// because that run may be alive.
void tidy(const RootDirectory& root, bool has_lock);

}  // namespace thinwire::checkpoint
