// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/commit/root.h"

namespace thinwire::checkpoint {

/// The checkpoint from which a run was resumed.
struct LoadedFrom {
  std::string name{};             ///< In this directory; empty: none.
  std::int64_t newest_index = 0;  ///< save_index of the newest one then.
};

/// Returns the names of checkpoints in `found` (newest first) to remove. These
/// are complete, of this run, have the library's names, and are not kept by
/// `which`. The newest one with finite parameters always stays, because no run
/// can continue from the others. `loaded_from` stays until two checkpoints
/// saved after the load are complete. Any that were newer belong to a branch
/// that the run has left.
[[nodiscard]] std::vector<std::string> superfluous(
    const std::vector<FoundCheckpoint>& found, const std::string& run,
    const Retention& which, const LoadedFrom& loaded_from);

}  // namespace thinwire::checkpoint
