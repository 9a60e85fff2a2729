// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/commit/root.h"

namespace thinwire::checkpoint {

/// The checkpoint that a run went on from.
struct LoadedFrom {
  std::string name{};             ///< In this directory; empty: none.
  std::int64_t newest_index = 0;  ///< save_index of the newest one then.
};

/// Names of those in `found` (newest first) that go: complete, of this run,
/// under the name that the library gave them, and not kept by `which`.
/// The newest one whose parameters are finite always stays: no run can continue
/// with the others. `loaded_from` stays until two that were saved after it was
/// loaded are complete: those that were newer are of a branch that the run has
/// left.
[[nodiscard]] std::vector<std::string> superfluous(
    const std::vector<FoundCheckpoint>& found, const std::string& run,
    const Retention& which, const LoadedFrom& loaded_from);

}  // namespace thinwire::checkpoint
