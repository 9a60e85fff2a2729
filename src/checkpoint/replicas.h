// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/optim/state.h"

namespace thinwire::checkpoint {

/// Collective over `comm`: throws Error(kInvalidArgument) on all ranks if they
/// differ in the step, counters, the caller's scalars, or arrays' names. The
/// error names the first difference. A checkpoint saves these from one rank.
/// With options.check_replicas it also compares the values of parameters and of
/// arrays that should be equal. Otherwise a checkpoint could mix slices of
/// replicas that have drifted apart, and hide it.
void require_same_replicas(comm::Communicator& comm, const Training& training,
                           const optim::State& state, const Extra& extra,
                           const SaveOptions& options);

/// Whether a run can continue with what is to be saved: parameters and states
/// are finite and at most 1e30 in magnitude. If not, rank 0 logs a warning that
/// names one of them. Collective; all ranks return the same.
[[nodiscard]] bool are_usable(comm::Communicator& comm,
                              const Training& training,
                              const optim::State& state);

}  // namespace thinwire::checkpoint
