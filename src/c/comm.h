// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "thinwire/comm/communicator.h"
#include "thinwire/thinwire.h"

/// Engines share the communicator, so handles may be freed in any order.
struct thinwire_comm {
  std::shared_ptr<thinwire::comm::Communicator> communicator;
};
