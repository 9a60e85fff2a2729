// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "support/handle.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/transport.h"

namespace thinwire::python {

/// _core.Communicator. All objects that use it share it, so that a group lives
/// until the last of them is closed.
using CommunicatorHandle = Handle<comm::Communicator>;

/// Makes a transport from a Python object with the members of Transport in
/// thinwire/comm/transport.py, and keeps the object. Throws exceptions from
/// reading them, and Error(kInvalidArgument) for numbers out of range.
[[nodiscard]] std::unique_ptr<comm::Transport> make_transport(
    nb::object object);

}  // namespace thinwire::python
