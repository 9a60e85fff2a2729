// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/optim/state.h"

namespace thinwire::checkpoint {

/// Collective over `comm`: throws Error(kInvalidArgument) on all ranks, naming
/// the first difference, where ranks differ in what a checkpoint takes from one
/// of them: the step, counters, the caller's scalars, arrays' names; and, with
/// options.check_replicas, in a value of a parameter or of an array that should
/// be equal. Slices of replicas that have drifted apart would be mixed, and the
/// checkpoint would hide it.
void require_same_replicas(comm::Communicator& comm, const Training& training,
                           const optim::State& state, const Extra& extra,
                           const SaveOptions& options);

}  // namespace thinwire::checkpoint
