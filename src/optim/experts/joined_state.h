// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "thinwire/core/state_dict.h"
#include "thinwire/optim/state.h"

/// States of parts of a model, the dense parameters first, as one state.
namespace thinwire::optim {

/// Adds the arrays of a further part, with `prefix` before their names: values
/// per element go on where an array of that name ends, if there is one. What
/// there is one of per group is the first part's.
void join(State& all, State part, const std::string& prefix);
/// What join() has made of `parts`, as they are now, cut into a state for each.
/// Scalars go into all of them. Throws Error(kCorruptCheckpoint) naming an
/// array of another size.
[[nodiscard]] std::vector<StateDict> cut(StateDict all,
                                         const std::vector<State>& parts,
                                         const std::string& prefix);

}  // namespace thinwire::optim
