// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bindings.h"
#include "support/state.h"
#include "thinwire/checkpoint/options.h"

namespace thinwire::python {

/// Returns the results of a load by name, with copies of its arrays.
[[nodiscard]] State fields_of(const checkpoint::LoadReport& report);

/// Returns copies of the two dicts of a pair: values that are equal on all
/// ranks, and this rank's own. None stands for empty dicts.
[[nodiscard]] checkpoint::Extra to_extra(nb::handle pair);

/// Returns `options`, or the defaults for null. If `callable` is not None, the
/// load calls it with fields_of() before anything changes. It holds the GIL. An
/// exception refuses the checkpoint on all ranks.
[[nodiscard]] checkpoint::LoadOptions to_load_options(
    const checkpoint::LoadOptions* options, const nb::object& callable);

}  // namespace thinwire::python
