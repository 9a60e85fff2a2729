// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/thread_pool.h"

namespace thinwire::optim {

/// Collective: compares `schedule` (lines of counters and options) and a
/// checksum of every parameter. Throws Error(kCommFailure) on all ranks if two
/// differ, with the first line or parameter in which they do. Reads the
/// parameters once and sends 8 bytes.
void verify_same(comm::Communicator& comm, ThreadPool& pool,
                 const ParameterLayout& layout, ConstView params,
                 const std::string& schedule);

}  // namespace thinwire::optim
