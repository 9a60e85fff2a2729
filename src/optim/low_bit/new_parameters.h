// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/low_bit/model.h"
#include "thinwire/core/state_dict.h"

namespace thinwire::optim {

/// Completes a saved state that does not know some parameters, which
/// kNewParameters lists and whose arrays are 0. If it has denominators, theirs
/// become the model's median, and they are inactive
/// (docs/algorithms/late-and-heavy.md). Throws Error(kCorruptCheckpoint).
void begin_new_parameters(StateDict& state, const LowBitModel& model);

}  // namespace thinwire::optim
