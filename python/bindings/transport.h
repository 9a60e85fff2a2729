// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "bindings.h"
#include "thinwire/comm/transport.h"

namespace thinwire::python {

/// Makes a transport of a Python object with the members of Transport in
/// thinwire/comm/transport.py. Keeps the object. Throws what reading its name,
/// rank and size raises, and Error(kInvalidArgument) for numbers out of range.
[[nodiscard]] std::unique_ptr<comm::Transport> make_transport(
    nb::object object);

}  // namespace thinwire::python
