// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bindings.h"
#include "thinwire/optim/update_rule.h"

namespace thinwire::python {

/// Makes rules whose arithmetic is a Python object's: an optimizer of torch
/// behind an engine. Call with the GIL. The object, engine._client.Client, has
///   name, description            texts; the same on all ranks
///   learning_rates               one per group
///   step(params, grads)          two memoryviews of fp32, params written
///   pack() -> bytes              its state, the same on all ranks
///   check(bytes) -> loaded       raises what does not fit, changes nothing
///   take(loaded)                 does not raise
[[nodiscard]] optim::MakeRule make_client_rule(nb::object client);

}  // namespace thinwire::python
