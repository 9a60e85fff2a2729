// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/low_bit/model.h"
#include "thinwire/core/state_dict.h"

namespace thinwire::optim {

/// Parameters that a saved state does not know, whose arrays are 0 in it, and
/// which kNewParameters lists: where denominators are made already, they are
/// late (docs/algorithms/late-and-heavy.md), with the median denominator of the
/// model. Throws Error(kCorruptCheckpoint).
void begin_new_parameters(StateDict& state, const LowBitModel& model);

}  // namespace thinwire::optim
