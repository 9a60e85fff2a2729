// SPDX-License-Identifier: Apache-2.0
#include "core/prompt_thread.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <thread>

namespace thinwire::prompt_thread_test {
namespace {

// Not with a real-time policy, nor where a sandbox keeps it from us.
bool has_timer_slack() {
  bool has = false;
  std::thread([&] {
    has =
        prctl(PR_SET_TIMERSLACK, 1000) == 0 && prctl(PR_GET_TIMERSLACK) == 1000;
  }).join();
  return has;
}

TEST(PromptThread, KeepsItsShareAndWakesOnTime) {
  const int slack = has_timer_slack() ? 1000 : prctl(PR_GET_TIMERSLACK);
  std::thread([slack] {
    const int policy = sched_getscheduler(0);
    const int priority = getpriority(PRIO_PROCESS, 0);
    make_thread_prompt();
    EXPECT_EQ(sched_getscheduler(0), policy);
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), priority);
    EXPECT_EQ(prctl(PR_GET_TIMERSLACK), slack);
  }).join();
}

TEST(PromptThread, LeavesOtherThreadsAsTheyWere) {
  const int before = prctl(PR_GET_TIMERSLACK);
  std::thread(make_thread_prompt).join();
  EXPECT_EQ(prctl(PR_GET_TIMERSLACK), before);
}

}  // namespace
}  // namespace thinwire::prompt_thread_test
