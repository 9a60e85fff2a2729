// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "bindings.h"
#include "thinwire/comm/transport.h"

namespace thinwire::python {

/// A Python object with the members of Transport in
/// thinwire/comm/transport.py as a transport. The object is kept. Throws what
/// reading its name, rank and size throws, and Error(kInvalidArgument) for
/// numbers out of range.
[[nodiscard]] std::unique_ptr<comm::Transport> make_transport(
    nb::object object);

}  // namespace thinwire::python
