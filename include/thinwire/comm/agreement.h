// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

/// Returns if all ranks passed the same `text`. Otherwise throws
/// Error(kInvalidArgument) on all ranks, with the first line in which two ranks
/// differ and both versions of it. `what` names the text in the message
/// ("parameter layout and options"). Collective; if all agree, this costs one
/// all-gather of 8 bytes.
void require_same(Communicator& comm, std::string_view what,
                  std::string_view text);

/// Calls `check`, which must not communicate, on every rank, and returns if it
/// threw on none. Otherwise throws on all ranks. Ranks whose check threw
/// rethrow that exception; the others throw Error with the text "rank 1 gave
/// up: ...". Its code is that of the lowest rank that failed, or
/// kFailedPrecondition if that rank threw something else than Error.
/// Collective; if no check throws, this costs one all-gather of 4 bytes.
void require_everywhere(Communicator& comm, const std::function<void()>& check);

/// Returns a communicator of the same ranks, whose collectives do not mix with
/// those of `comm`, or null if the transport has no groups. Collective.
[[nodiscard]] std::unique_ptr<Communicator> second_group(Communicator& comm);

/// Returns every rank's text, in rank order. Collective.
[[nodiscard]] std::vector<std::string> gather_texts(Communicator& comm,
                                                    std::string_view text);

}  // namespace thinwire::comm
