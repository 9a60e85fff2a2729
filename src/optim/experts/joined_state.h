// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "thinwire/core/state_dict.h"
#include "thinwire/optim/state.h"

/// Joins the states of a model's parts into one state, with the dense
/// parameters first.
namespace thinwire::optim {

/// Adds the arrays of another part, with `prefix` before their names. If an
/// array of that name exists, values per element are appended to it. Values per
/// group remain those of the first part.
void join(State& all, State part, const std::string& prefix);
/// Adds a part whose arrays and scalars all get names with `prefix`.
void join_under(State& all, State part, const std::string& prefix);
/// Cuts the result of join() into one state for each of `parts`, as they are
/// now. Each state gets all scalars. Throws Error(kCorruptCheckpoint) with the
/// name of an array whose size differs.
[[nodiscard]] std::vector<StateDict> cut(StateDict all,
                                         const std::vector<State>& parts,
                                         const std::string& prefix);

}  // namespace thinwire::optim
