// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/optim/state.h"

namespace thinwire::checkpoint {

/// Whether a run can continue with what is to be saved: parameters and states
/// are finite and at most 1e30 in magnitude. If not, rank 0 logs a warning that
/// names one of them. Collective; all ranks return the same.
[[nodiscard]] bool are_usable(comm::Communicator& comm,
                              const Training& training,
                              const optim::State& state);

}  // namespace thinwire::checkpoint
