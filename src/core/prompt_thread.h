// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace thinwire {

/// Local: asks the system to run the calling thread soon after it wakes, even
/// while others compute without pause. It requests short time slices (Linux
/// 6.12 and later) and sleeps that end on time. The thread's share of the
/// processor does not grow. If the system cannot do this, nothing changes.
void make_thread_prompt() noexcept;

}  // namespace thinwire
