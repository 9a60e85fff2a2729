// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "checkpoint/commit/root_directory.h"

namespace thinwire::checkpoint {

/// Puts in order what a crash left in a ROOT: what is complete gets its final
/// name, what is not and was made by this run is removed, but a part of which
/// other hosts may have the rest only once a newer one is complete. What
/// another run left is logged and stays; adopting it needs the lock, since that
/// run may be alive.
void tidy(const RootDirectory& root, bool has_lock);

}  // namespace thinwire::checkpoint
