// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "bindings.h"
#include "support/state.h"
#include "thinwire/checkpoint/options.h"

namespace thinwire::python {

/// _core.LoadReport: the result of a load, with its arrays as Python objects.
struct LoadFound {
  explicit LoadFound(checkpoint::LoadReport&& report);
  LoadFound(LoadFound&&) = default;
  LoadFound(const LoadFound&) = delete;

  checkpoint::LoadReport report;  // its arrays have been moved
  State scalars;
  State common;
  State own;
  nb::typed<nb::list, State> own_of_ranks;
};

/// Returns copies of the dicts of a pair: values that are equal on all ranks,
/// and this rank's own. None has none.
[[nodiscard]] checkpoint::Extra to_extra(nb::handle pair);

/// Returns `options`, or the defaults for null. If `callable` is not None, the
/// load calls it, with the GIL, with what was found, before anything changes.
/// An exception of it refuses the checkpoint on all ranks.
[[nodiscard]] checkpoint::LoadOptions to_load_options(
    const checkpoint::LoadOptions* options, const nb::object& callable);

}  // namespace thinwire::python
