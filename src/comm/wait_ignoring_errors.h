// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/comm/work.h"
#include "thinwire/core/error.h"

namespace thinwire::comm {

/// Blocks until a collective no longer reads or writes its buffers, so that the
/// caller may free them. It does not matter whether the collective succeeded.
inline void wait_ignoring_errors(const Work& work) noexcept {
  try {
    work.wait();
  } catch (const Error&) {
    // Failed collectives are over, too.
  }
}

}  // namespace thinwire::comm
