// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "thinwire/core/state_dict.h"
#include "thinwire/optim/state.h"

/// States of parts of a model, the dense parameters first, as one state.
namespace thinwire::optim {

/// Adds the arrays of a further part, with `prefix` before their names. Values
/// per element are appended to an array of that name, if there is one. Values
/// per group are those of the first part.
void join(State& all, State part, const std::string& prefix);
/// Adds a part whose arrays and scalars get names of their own by `prefix`.
void join_under(State& all, State part, const std::string& prefix);
/// Cuts the result of join() into a state for each of `parts`, as they are now.
/// Each state gets all scalars. Throws Error(kCorruptCheckpoint), which names
/// an array of another size.
[[nodiscard]] std::vector<StateDict> cut(StateDict all,
                                         const std::vector<State>& parts,
                                         const std::string& prefix);

}  // namespace thinwire::optim
