// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/saved_state.h"
#include "thinwire/optim/state.h"

namespace thinwire::deepspeed {

/// In a state: a load makes residuals 0, and more, as the reference's does.
inline constexpr const char* kForgets = "forgets_compression";

/// A copy to adopt, with that mark.
[[nodiscard]] inline StateDict copy_that_forgets(const StateDict& state) {
  StateDict marked = optim::copy_to_adopt(state);
  marked.put_integer(kForgets, 1);
  return marked;
}

/// Returns the state with every array as the rank's own, as in the reference's
/// files. Only the same rank of equally many can use it.
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
