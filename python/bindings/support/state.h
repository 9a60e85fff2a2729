// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bindings.h"
#include "thinwire/core/state_dict.h"

namespace thinwire::python {

using State = nb::typed<nb::dict, nb::str, nb::any>;

/// Returns {name: array, int, float or str}; arrays are moved, not copied.
[[nodiscard]] State to_python(StateDict&& state);

/// Returns a copy of {name: array, int, float or str}. `name` is the
/// argument's. Throws TypeError for other values.
[[nodiscard]] StateDict to_state(nb::handle mapping, const char* name);

}  // namespace thinwire::python
