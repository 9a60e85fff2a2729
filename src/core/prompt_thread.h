// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace thinwire {

/// Local: asks the system to run the calling thread soon after it is woken,
/// while others compute without pause: short slices (Linux 6.12 and later) and
/// sleeps that end on time. Its share of the processor does not grow; where the
/// system cannot do this, nothing changes.
void make_thread_prompt() noexcept;

}  // namespace thinwire
