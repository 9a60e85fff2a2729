// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bindings.h"
#include "thinwire/checkpoint/options.h"

namespace thinwire::python {

/// Returns copies of the dicts of a pair: values that are equal on all ranks,
/// and this rank's own. None has none.
[[nodiscard]] checkpoint::Extra to_extra(nb::handle pair);

}  // namespace thinwire::python
