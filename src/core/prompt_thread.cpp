// SPDX-License-Identifier: Apache-2.0
#include "core/prompt_thread.h"

#include <linux/sched/types.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace thinwire {

void make_thread_prompt() noexcept {
  constexpr unsigned long kTimerSlack = 1000;     // ns; 50,000 without this
  constexpr unsigned long long kSlice = 100'000;  // ns, the least there is
  prctl(PR_SET_TIMERSLACK, kTimerSlack);
  sched_attr attributes{};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0)
    return;
  attributes.sched_runtime = kSlice;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

}  // namespace thinwire
