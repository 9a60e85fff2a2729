// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/schedule.h"

#include <gtest/gtest.h>

namespace thinwire::train_gpt {
namespace {

constexpr Schedule kDemo{.peak = 1.5e-3, .warmup_steps = 50, .steps = 500};

TEST(Schedule, RisesLinearlyToThePeak) {
  EXPECT_DOUBLE_EQ(kDemo.learning_rate(1), 1.5e-3 / 50);
  EXPECT_DOUBLE_EQ(kDemo.learning_rate(25), 1.5e-3 / 2);
  EXPECT_DOUBLE_EQ(kDemo.learning_rate(50), 1.5e-3);
}

TEST(Schedule, FallsAllTheWayToATenth) {
  for (std::int64_t step = 51; step <= 500; ++step) {
    EXPECT_LT(kDemo.learning_rate(step), kDemo.learning_rate(step - 1));
  }
  // Half-way the cosine is 0: the mean of peak and end.
  EXPECT_DOUBLE_EQ(kDemo.learning_rate(275), 1.5e-3 * 0.55);
  EXPECT_DOUBLE_EQ(kDemo.learning_rate(500), 1.5e-4);
}

TEST(Schedule, WithoutWarmUpBeginsBelowThePeak) {
  const Schedule schedule{.peak = 1, .warmup_steps = 0, .steps = 10};
  EXPECT_LT(schedule.learning_rate(1), 1);
  EXPECT_GT(schedule.learning_rate(1), 0.97);
  EXPECT_DOUBLE_EQ(schedule.learning_rate(10), 0.1);
}

TEST(Schedule, WarmUpMayLastLongerThanTheRun) {
  const Schedule schedule{.peak = 1, .warmup_steps = 50, .steps = 30};
  EXPECT_DOUBLE_EQ(schedule.learning_rate(30), 0.6);
}

TEST(Schedule, OneStepIsEnough) {
  const Schedule schedule{.peak = 1, .warmup_steps = 0, .steps = 1};
  EXPECT_DOUBLE_EQ(schedule.learning_rate(1), 0.1);
}

}  // namespace
}  // namespace thinwire::train_gpt
