// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bindings.h"
#include "support/state.h"
#include "thinwire/checkpoint/options.h"

namespace thinwire::python {

/// Returns the results of a load by name, with copies of its arrays.
[[nodiscard]] State fields_of(const checkpoint::LoadReport& report);

/// Returns copies of the dicts of a pair: values that are equal on all ranks,
/// and this rank's own. None has none.
[[nodiscard]] checkpoint::Extra to_extra(nb::handle pair);

/// Returns `options`, or the defaults for null. If `callable` is not None, the
/// load calls it, with the GIL, with fields_of(), before anything changes.
/// An exception of it refuses the checkpoint on all ranks.
[[nodiscard]] checkpoint::LoadOptions to_load_options(
    const checkpoint::LoadOptions* options, const nb::object& callable);

}  // namespace thinwire::python
