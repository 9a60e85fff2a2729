// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/handle.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::python {

/// _core.Communicator. All objects that use one share it, so that a group lives
/// until the last of them is closed.
using CommunicatorHandle = Handle<comm::Communicator>;

}  // namespace thinwire::python
