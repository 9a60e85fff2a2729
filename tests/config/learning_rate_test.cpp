// SPDX-License-Identifier: Apache-2.0
#include "thinwire/config/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/errors.h"

namespace thinwire::config::learning_rate_test {
namespace {

template <class Shape>
double rate(const Shape& shape, std::int64_t applied, double base = 1) {
  const LearningRateSchedule schedule{.shape = shape};
  schedule.validate();
  return schedule.rate(base, applied);
}

template <class Shape>
void expect_rejected(const Shape& shape,
                     std::initializer_list<std::string_view> parts) {
  test::expect_error(ErrorCode::kInvalidArgument, parts,
                     [&] { LearningRateSchedule{.shape = shape}.validate(); });
}

TEST(LearningRate, IsTheOptimizersByDefault) {
  EXPECT_EQ(LearningRateSchedule{}.rate(0.25, 0), 0.25);
  EXPECT_EQ(LearningRateSchedule{}.rate(0.25, 1'000'000), 0.25);
  EXPECT_TRUE(LearningRateSchedule{}.is_constant());
  EXPECT_FALSE(
      LearningRateSchedule{WarmupAndDecay{.warmup_steps = 1}}.is_constant());
  EXPECT_FALSE(LearningRateSchedule{WarmupLr{}}.is_constant());
}

TEST(LearningRate, WarmsUpToTheOptimizersInTheLastStepOfTheWarmup) {
  const WarmupAndDecay linear{.warmup_steps = 4};
  EXPECT_EQ(rate(linear, 0), 0.25);
  EXPECT_EQ(rate(linear, 3), 1);
  EXPECT_EQ(rate(linear, 4), 1);
  const WarmupAndDecay log{.warmup = Warmup::kLog, .warmup_steps = 3};
  EXPECT_DOUBLE_EQ(rate(log, 0), 0.5);  // log 2 / log 4
  EXPECT_EQ(rate(log, 2), 1);
}

TEST(LearningRate, DecaysToItsFinalFractionInTheLastStep) {
  const WarmupAndDecay linear{.decay = Decay::kLinear,
                              .warmup_steps = 2,
                              .total_steps = 12,
                              .final_fraction = 0.5};
  EXPECT_EQ(rate(linear, 1), 1);
  EXPECT_DOUBLE_EQ(rate(linear, 6), 0.75);
  EXPECT_EQ(rate(linear, 11), 0.5);
  EXPECT_EQ(rate(linear, 100), 0.5);
  WarmupAndDecay cosine = linear;
  cosine.decay = Decay::kCosine;
  EXPECT_DOUBLE_EQ(rate(cosine, 6), 0.75);
  EXPECT_DOUBLE_EQ(rate(cosine, 6, 2), 1.5);
  EXPECT_EQ(rate(cosine, 11), 0.5);
  EXPECT_EQ(rate(cosine, 100), 0.5);
}

TEST(LearningRate, FallsWithTheRootOfTheStepFromThePeakOn) {
  const WarmupAndDecay root{
      .decay = Decay::kInverseSqrt, .warmup_steps = 4, .final_fraction = 0.25};
  EXPECT_EQ(rate(root, 3), 1);
  EXPECT_EQ(rate(root, 15), 0.5);
  EXPECT_EQ(rate(root, 1'000'000), 0.25);
  EXPECT_EQ(rate(WarmupAndDecay{.decay = Decay::kInverseSqrt}, 3), 0.5);
}

// deepspeed_schedulers_test.cpp has the other shapes, all with a step of decay.
TEST(OneCycle, DoesNotDecayWithoutASizeOfItsSteps) {
  const OneCycle cycle{.cycle_min_lr = 1,
                       .cycle_max_lr = 3,
                       .decay_lr_rate = 1,
                       .cycle_first_step_size = 10,
                       .cycle_second_step_size = 5};
  EXPECT_DOUBLE_EQ(rate(cycle, 12), 2.2);
  EXPECT_EQ(rate(cycle, 15), 1);
  EXPECT_EQ(rate(cycle, 99), 1);
}

TEST(LearningRate, RejectsWhatMakesNoSense) {
  expect_rejected(WarmupAndDecay{.warmup_steps = -1}, {"warmup_steps", "-1"});
  expect_rejected(WarmupAndDecay{.final_fraction = 2},
                  {"final_fraction must be in [0, 1], got 2"});
  expect_rejected(WarmupAndDecay{.decay = Decay::kCosine},
                  {"total_steps must be in [1,", "got 0"});
  expect_rejected(WarmupLr{.warmup_num_steps = 0}, {"warmup_num_steps", "0"});
  expect_rejected(WarmupLr{.warmup_min_lr = std::nan("")}, {"warmup_min_lr"});
  expect_rejected(WarmupDecayLr{}, {"total_num_steps", "given", "1000"});
  expect_rejected(WarmupCosineLr{.total_num_steps = 10},
                  {"total_num_steps", "1000", "10"});
  expect_rejected(OneCycle{.cycle_first_step_size = 0},
                  {"cycle_first_step_size", "0"});
  expect_rejected(
      OneCycle{.cycle_max_lr = std::numeric_limits<double>::infinity()},
      {"cycle_max_lr", "finite", "inf"});
  expect_rejected(LrRangeTest{.lr_range_test_step_size = 0},
                  {"lr_range_test_step_size", "0"});
  test::expect_error(ErrorCode::kInvalidArgument, {"applied_steps", "-1"}, [] {
    static_cast<void>(LearningRateSchedule{}.rate(1, -1));
  });
}

}  // namespace
}  // namespace thinwire::config::learning_rate_test
