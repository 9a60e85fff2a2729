// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

/// Collective: returns on all ranks if all gave the same `text`, else throws
/// Error(kInvalidArgument) on all of them, showing the first line in which two
/// ranks differ, and what both have. `what` names the text in the message
/// ("parameter layout and options"). Costs one all-gather of 8 bytes when all
/// agree.
void require_same(Communicator& comm, std::string_view what,
                  std::string_view text);

/// Collective: calls `check`, which must not communicate, on every rank, and
/// returns on all of them if it threw on none. Otherwise throws on all: where
/// it threw, what it threw; elsewhere an Error with the code of the lowest such
/// rank (kFailedPrecondition if that was no Error) and the text "rank 1 gave
/// up: ...". Costs one all-gather of 4 bytes if it threw on none.
void require_everywhere(Communicator& comm, const std::function<void()>& check);

/// Collective: every rank's text, in rank order.
[[nodiscard]] std::vector<std::string> gather_texts(Communicator& comm,
                                                    std::string_view text);

}  // namespace thinwire::comm
