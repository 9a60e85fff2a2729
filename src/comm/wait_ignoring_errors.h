// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/comm/work.h"
#include "thinwire/core/error.h"

namespace thinwire::comm {

/// Blocks until a collective no longer accesses its buffers, whether or not it
/// succeeded, so that the caller may free them.
inline void wait_ignoring_errors(const Work& work) noexcept {
  try {
    work.wait();
  } catch (const Error&) {
    // A failed collective has ended as well.
  }
}

}  // namespace thinwire::comm
