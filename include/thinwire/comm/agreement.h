// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

/// Returns on all ranks if all gave the same `text`. Otherwise throws
/// Error(kInvalidArgument) on all of them, with the first line in which two
/// ranks differ, as both have it. `what` names the text in the message
/// ("parameter layout and options"). Collective: one all-gather of 8 bytes if
/// all agree.
void require_same(Communicator& comm, std::string_view what,
                  std::string_view text);

/// Calls `check`, which must not communicate, on every rank, and returns on all
/// of them if none threw. Otherwise throws on all: ranks whose check threw
/// rethrow that exception, the others throw Error with the text "rank 1 gave
/// up: ...". Its code is that of the lowest rank that failed, or
/// kFailedPrecondition if that exception was no Error. Collective: one
/// all-gather of 4 bytes if none threw.
void require_everywhere(Communicator& comm, const std::function<void()>& check);

/// Returns a communicator of the same ranks, whose collectives do not mix with
/// those of `comm`, or null if the transport has no groups. Collective.
[[nodiscard]] std::unique_ptr<Communicator> second_group(Communicator& comm);

/// Returns every rank's text, in rank order. Collective.
[[nodiscard]] std::vector<std::string> gather_texts(Communicator& comm,
                                                    std::string_view text);

}  // namespace thinwire::comm
