// SPDX-License-Identifier: Apache-2.0
#include "examples/train_gpt/agreed_failure.h"

#include <gtest/gtest.h>

#include <atomic>

#include "thinwire/comm/local.h"

namespace thinwire::train_gpt::agreed_failure_test {
namespace {

TEST(PrepareEverywhere, IsTrueOnAllRanksIfNothingFails) {
  comm::run_local_ranks(3, [](comm::Communicator& comm) {
    EXPECT_TRUE(prepare_everywhere(comm, [] {}));
  });
}

TEST(PrepareEverywhere, TheLowestRankThatFailsTellsWhy) {
  std::atomic<int> told = 0;
  std::atomic<int> ended = 0;
  comm::run_local_ranks(4, [&](comm::Communicator& comm) {
    try {
      const bool ready = prepare_everywhere(comm, [&] {
        if (comm.rank() == 1) throw std::runtime_error("no disk");
        if (comm.rank() == 3) throw std::runtime_error("no text");
      });
      EXPECT_FALSE(ready);
      ++ended;
    } catch (const AgreedFailure& failure) {
      EXPECT_EQ(comm.rank(), 1);
      EXPECT_STREQ(failure.what(), "no disk");
      ++told;
    }
  });
  EXPECT_EQ(told, 1);
  EXPECT_EQ(ended, 3);
}

}  // namespace
}  // namespace thinwire::train_gpt::agreed_failure_test
