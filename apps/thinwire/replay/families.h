// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "apps/thinwire/replay/comparison.h"
#include "apps/thinwire/replay/recorded_case.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/config/semantics.h"

namespace thinwire::replay {

/// Runs a case on this rank of `comm`, whose size is the case's world, and
/// compares everything that was recorded. Throws Unsupported before any
/// exchange if it does not understand the case.
using Family = void (*)(const RecordedCase& recorded, comm::Communicator& comm,
                        config::Semantics semantics, Comparison& comparison);

void replay_onebit_adam(const RecordedCase& recorded, comm::Communicator& comm,
                        config::Semantics semantics, Comparison& comparison);
void replay_onebit_lamb(const RecordedCase& recorded, comm::Communicator& comm,
                        config::Semantics semantics, Comparison& comparison);
void replay_zero_one_adam(const RecordedCase& recorded,
                          comm::Communicator& comm, config::Semantics semantics,
                          Comparison& comparison);
void replay_zero(const RecordedCase& recorded, comm::Communicator& comm,
                 config::Semantics semantics, Comparison& comparison);
void replay_compressed_all_reduce(const RecordedCase& recorded,
                                  comm::Communicator& comm,
                                  config::Semantics semantics,
                                  Comparison& comparison);

/// Returns the case's family; throws Unsupported if there is none.
[[nodiscard]] Family family_of(const RecordedCase& recorded);
/// Returns the sizes of the case's tensors in flat order.
[[nodiscard]] std::vector<std::size_t> tensor_sizes(
    const RecordedCase& recorded);

}  // namespace thinwire::replay
