// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

/// Collective: returns on all ranks if all gave the same `text`, else throws
/// Error(kInvalidArgument) on all of them, showing the first line in which two
/// ranks differ, and what both have. `what` names the text in the message
/// ("parameter layout and options"). Costs one all-gather of 8 bytes when all
/// agree.
void require_same(Communicator& comm, std::string_view what,
                  std::string_view text);

}  // namespace thinwire::comm
