// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "bindings.h"
#include "support/state.h"
#include "thinwire/checkpoint/options.h"

namespace thinwire::python {

/// _core.LoadReport: what a load found, with its arrays as Python has them.
struct LoadFound {
  explicit LoadFound(checkpoint::LoadReport&& report);
  LoadFound(LoadFound&&) = default;
  LoadFound(const LoadFound&) = delete;

  checkpoint::LoadReport report;  // its arrays have been moved on
  State scalars;
  State common;
  State own;
  nb::typed<nb::list, State> own_of_ranks;
};

/// `options`, or the default ones if there are none. If `callable` is not None,
/// it is called, with the GIL, with what was found, before anything changes;
/// what it raises refuses the checkpoint on all ranks.
[[nodiscard]] checkpoint::LoadOptions to_load_options(
    const checkpoint::LoadOptions* options, const nb::object& callable);

}  // namespace thinwire::python
