// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/saved_state.h"
#include "thinwire/optim/state.h"

namespace thinwire::deepspeed {

/// Key of a state whose load clears the residuals and other statistics, as in
/// DeepSpeed.
inline constexpr const char* kForgets = "forgets_compression";

/// Returns a copy that contains the key kForgets.
[[nodiscard]] inline StateDict copy_that_forgets(const StateDict& state) {
  StateDict marked = optim::copy_to_adopt(state);
  marked.put_integer(kForgets, 1);
  return marked;
}

/// Marks every array of the state as the rank's own, as in DeepSpeed's files.
/// Only the same rank of a run with the same number of ranks can load it.
[[nodiscard]] inline optim::State own_state(optim::State state) {
  for (optim::StateArray& array : state.arrays) {
    array.axis = optim::Axis::kFree;
    array.sharing = optim::Sharing::kOwn;
    array.ranges.clear();
    array.is_parameters = false;
  }
  return state;
}

}  // namespace thinwire::deepspeed
