// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/transport.h"

#include <atomic>

namespace thinwire::comm {
namespace {

std::atomic<const char*> interrupt_reason{nullptr};
static_assert(std::atomic<const char*>::is_always_lock_free,
              "interrupt() is called from signal handlers");

}  // namespace

void interrupt(const char* reason) noexcept { interrupt_reason = reason; }

const char* interrupted() noexcept { return interrupt_reason; }

}  // namespace thinwire::comm
