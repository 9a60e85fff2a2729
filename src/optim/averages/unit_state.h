// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/state.h"

/// Residuals of averages in units (exchange/units) in states.
namespace thinwire::optim {

/// Names of the arrays, and the elements that this rank encodes and serves.
struct UnitResidualParts {
  const char* worker;
  const char* server;
  std::vector<Range> encoded;
  std::vector<Range> served;
};

/// Residuals of all elements in fp32, which are 0 where this rank has none.
struct UnitErrors {
  Buffer worker;
  Buffer server;
};

/// Adds residuals of all elements, of which the state keeps those in `parts`.
/// `worker` must outlive the state.
void add_unit_errors(State& state, const UnitResidualParts& parts,
                     ConstView worker, ConstView server);
/// Takes the residuals of a layout of `size` elements from a state. Returns
/// nothing if it has none. Throws Error(kCorruptCheckpoint).
[[nodiscard]] std::optional<UnitErrors> take_unit_errors(
    StateDict& state, const UnitResidualParts& parts, std::size_t size);

}  // namespace thinwire::optim
