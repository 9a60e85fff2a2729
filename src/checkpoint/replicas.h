// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/optim/state.h"

namespace thinwire::checkpoint {

/// Throws Error(kInvalidArgument) on all ranks if they differ in the step,
/// counters, the caller's scalars, or arrays' names. The error names the first
/// difference. A checkpoint saves these from one rank. With
/// options.check_replicas it also compares the values of parameters and of
/// arrays that should be equal. Otherwise a checkpoint could silently mix
/// slices of replicas that have drifted apart. Collective over `comm`.
void require_same_replicas(comm::Communicator& comm, const Training& training,
                           const optim::State& state, const Extra& extra,
                           const SaveOptions& options);

/// Returns whether a run could continue from the checkpoint: parameters and
/// states are finite and at most 1e30 in magnitude. If not, rank 0 logs a
/// warning that names an unusable value. Collective; the result is the same on
/// all ranks.
[[nodiscard]] bool are_usable(comm::Communicator& comm,
                              const Training& training,
                              const optim::State& state);

}  // namespace thinwire::checkpoint
