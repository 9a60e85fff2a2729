// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/comm/work.h"
#include "thinwire/core/error.h"

namespace thinwire::comm {

/// For who gives up the buffers of a collective: returns when nothing is read
/// or written there any more, whether it succeeded or a peer was lost.
inline void wait_ignoring_errors(const Work& work) noexcept {
  try {
    work.wait();
  } catch (const Error&) {
    // Failed collectives are over, too.
  }
}

}  // namespace thinwire::comm
