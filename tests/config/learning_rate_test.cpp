// SPDX-License-Identifier: Apache-2.0
#include "thinwire/config/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "support/errors.h"
#include "thinwire/config/config.h"

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
  test::expect_invalid(
      parts, [&] { LearningRateSchedule{.shape = shape}.validate(); });
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

TEST(LearningRate, KnowsInHowManyStepsItRises) {
  const auto steps = [](const auto& shape) {
    return LearningRateSchedule{.shape = shape}.warmup_steps();
  };
  EXPECT_EQ(steps(WarmupAndDecay{}), 0);
  EXPECT_EQ(steps(WarmupAndDecay{.warmup_steps = 4}), 4);
  EXPECT_EQ(steps(WarmupLr{.warmup_num_steps = 5}), 5);
  EXPECT_EQ(steps(WarmupDecayLr{.warmup_num_steps = 6}), 6);
  EXPECT_EQ(steps(WarmupCosineLr{.warmup_num_steps = 7}), 7);
  EXPECT_EQ(steps(OneCycle{.cycle_first_step_size = 8}), 8);
  EXPECT_EQ(steps(LrRangeTest{}), 0);
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

// kRecorded has the other shapes, all with a step of decay.
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
  test::expect_invalid({"applied_steps", "-1"}, [] {
    static_cast<void>(LearningRateSchedule{}.rate(1, -1));
  });
}

// ---- rates that the schedulers of DeepSpeed 0.19.6 set, recorded by running
// them with an optimizer of learning rate 0.2

// Steps applied before each recorded rate.
constexpr std::int64_t kApplied[] = {0,  1,  2,  3,  5,  7,  8,  10,
                                     13, 17, 18, 20, 25, 26, 29, 40};

struct Recorded {
  const char* scheduler;
  std::vector<double> rates;
};

const Recorded kRecorded[] = {
    {R"({"type": "WarmupLR", "params": {"warmup_min_lr": 0.01, "warmup_num_steps": 7}})",
     {0.01, 0.01, 0.07767936555052421, 0.11726925647018013, 0.1671466203159141,
      0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2}},
    {R"({"type": "WarmupLR", "params": {"warmup_max_lr": 0.3, "warmup_num_steps": 1, "warmup_type": "linear"}})",
     {0.0, 0.0, 0.15, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3,
      0.3, 0.3}},
    {R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 26, "warmup_num_steps": 7}})",
     {0.0, 0.0, 0.0003562071871080222, 0.0005645750340535797,
      0.0008270874753469162, 0.001, 0.001, 0.0008947368421052632,
      0.0007368421052631579, 0.0005263157894736842, 0.00047368421052631577,
      0.00036842105263157896, 0.00010526315789473683, 5.263157894736842e-05,
      0.0, 0.0}},
    {R"({"type": "WarmupDecayLR", "params": {"total_num_steps": 7, "warmup_min_lr": 0.0005, "warmup_num_steps": 7, "warmup_type": "linear"}})",
     {0.0005, 0.0005, 0.0005714285714285715, 0.0006428571428571428,
      0.0007857142857142856, 0.0009285714285714286, 0.0005, 0.0005, 0.0005,
      0.0005, 0.0005, 0.0005, 0.0005, 0.0005, 0.0005, 0.0005}},
    {R"({"type": "WarmupCosineLR", "params": {"total_num_steps": 26, "warmup_num_steps": 7, "warmup_min_ratio": 0.1}})",
     {0.0, 0.020000000000000004, 0.08411729367944401, 0.12162350612964434,
      0.16887574556244492, 0.2, 0.19863626672723822, 0.18794858038313683,
      0.1546993463306615, 0.0917528912462215, 0.0754639061407915,
      0.04532065366933855, 0.0013837332727617952, 2e-05, 2e-05, 2e-05}},
    {R"({"type": "WarmupCosineLR", "params": {"total_num_steps": 7, "warmup_num_steps": 7, "cos_min_ratio": 0.25, "warmup_type": "linear"}})",
     {0.0, 0.0, 0.02857142857142857, 0.05714285714285714, 0.11428571428571428,
      0.17142857142857143, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05, 0.05,
      0.05}},
    {R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.7, "cycle_first_step_size": 10, "cycle_momentum": false}})",
     {0.1, 0.16000000000000006, 0.2200000000000001, 0.2799999999999999, 0.4,
      0.5200000000000001, 0.5799999999999998, 0.7, 0.5200000000000001,
      0.2799999999999999, 0.2200000000000001, 0.1, 0.1, 0.1, 0.1, 0.1}},
    {R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.7, "cycle_first_step_size": 10, "cycle_second_step_size": 7, "decay_step_size": 3, "decay_lr_rate": 0.5, "cycle_momentum": false}})",
     {0.1, 0.16000000000000003, 0.22000000000000003, 0.28, 0.4,
      0.5199999999999998, 0.5800000000000001, 0.6999999999999998,
      0.44285714285714295, 0.1, 0.08571428571428572, 0.06666666666666667,
      0.042857142857142864, 0.04, 0.03333333333333333, 0.020689655172413793}},
    {R"({"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.7, "cycle_first_step_size": 10, "cycle_second_step_size": 7, "cycle_first_stair_count": 3, "cycle_second_stair_count": 2, "cycle_momentum": false}})",
     {0.1, 0.1, 0.1, 0.1, 0.3, 0.5, 0.5, 0.7, 0.4, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1,
      0.1}},
    {R"({"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0.003, "lr_range_test_step_size": 7}})",
     {0.003, 0.0034285714285714284, 0.0038571428571428567, 0.004285714285714286,
      0.0051428571428571435, 0.006, 0.0064285714285714285, 0.007285714285714287,
      0.008571428571428572, 0.010285714285714285, 0.010714285714285714,
      0.011571428571428571, 0.013714285714285714, 0.014142857142857143,
      0.01542857142857143, 0.020142857142857143}},
    {R"({"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0.003, "lr_range_test_step_size": 7, "lr_range_test_step_rate": 0.3, "lr_range_test_staircase": true}})",
     {0.003, 0.003, 0.003, 0.003, 0.003, 0.0039000000000000003,
      0.0039000000000000003, 0.0039000000000000003, 0.0039000000000000003,
      0.0048000000000000004, 0.0048000000000000004, 0.0048000000000000004,
      0.0057, 0.0057, 0.006600000000000001, 0.0075}},
};

TEST(DeepSpeedSchedulers, GiveTheSameRates) {
  for (const Recorded& recorded : kRecorded) {
    SCOPED_TRACE(recorded.scheduler);
    const Config config = Config::from_json(
        "{\"scheduler\": " + std::string(recorded.scheduler) + "}");
    ASSERT_EQ(recorded.rates.size(), std::size(kApplied));
    for (std::size_t i = 0; i < recorded.rates.size(); ++i)
      EXPECT_DOUBLE_EQ(config.schedule.rate(0.2, kApplied[i]),
                       recorded.rates[i])
          << "after " << kApplied[i] << " steps";
  }
}

}  // namespace
}  // namespace thinwire::config::learning_rate_test
