// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/optim/state.h"

namespace thinwire::deepspeed {

/// The same state, of use to the same rank of as many only: every array is that
/// rank's own, as the reference's files have it.
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
