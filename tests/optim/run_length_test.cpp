// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/run_length.h"

#include <gtest/gtest.h>

#include <limits>

#include "thinwire/comm/local.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/optim/onebit_lamb.h"
#include "thinwire/optim/zero_one_adam.h"

namespace thinwire::optim::run_length_test {
namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TEST(RunLength, TheFreezeIsAFifthOfTheRunWithinOneAndAThousand) {
  EXPECT_EQ(freeze_step_of_run(1), 1);
  EXPECT_EQ(freeze_step_of_run(4), 1);
  EXPECT_EQ(freeze_step_of_run(300), 60);
  EXPECT_EQ(freeze_step_of_run(4999), 999);
  EXPECT_EQ(freeze_step_of_run(5000), 1000);
  EXPECT_EQ(freeze_step_of_run(kMost), 1000);
}

TEST(RunLength, ZeroOneAdamsStagesScaleWithTheRun) {
  EXPECT_EQ(zero_one_stages_of_run(500), (ZeroOneStages{250, 16, 60, 4}));
  EXPECT_EQ(zero_one_stages_of_run(1), (ZeroOneStages{1, 16, 1, 4}));
  EXPECT_EQ(zero_one_stages_of_run(9999).local_step_clipper, 4);
  EXPECT_EQ(zero_one_stages_of_run(10'000),
            (ZeroOneStages{5000, 16, 1200, 16}));
  EXPECT_EQ(zero_one_stages_of_run(kMost).var_freeze_step,
            kMost / 100 * 50 + 3);
}

TEST(RunLength, ANamedFreezeStepWinsOverTheRunsLength) {
  EXPECT_EQ(freeze_step_of({}), 100'000);
  EXPECT_EQ(freeze_step_of({.total_steps = 300}), 60);
  EXPECT_EQ(freeze_step_of({.step = 7, .total_steps = 300}), 7);
  EXPECT_EQ(freeze_step_of({.step = kAutoFreeze, .total_steps = 300}),
            kAutoFreeze);
}

TEST(RunLength, WhatIsNamedOfZeroOneAdamsStagesStays) {
  EXPECT_EQ(zero_one_stages_of(ZeroOneAdamOptions{}),
            (ZeroOneStages{100'000, 16, 32'678, 16}));
  EXPECT_EQ(zero_one_stages_of(ZeroOneAdamOptions{.total_steps = 500,
                                                  .local_step_clipper = 1}),
            (ZeroOneStages{250, 16, 60, 1}));
  EXPECT_EQ(zero_one_stages_of(ZeroOneAdamOptions{.total_steps = 500,
                                                  .var_freeze_step = 9,
                                                  .var_update_scaler = 2,
                                                  .local_step_scaler = 3}),
            (ZeroOneStages{9, 2, 3, 4}));
}

// Twenty steps: a fifth of them are exact, or half of 0/1 Adam's may move the
// variance.
TEST(RunLength, DecidesTheStagesOfARunThatNamesNothingElse) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    const auto layout = ParameterLayout::of({{.name = "w", .shape = {8}}});
    std::vector<float> params(8, 1);
    OnebitAdam adam(comm, layout, {.freeze = {.total_steps = 20}});
    OnebitLamb lamb(comm, layout, {.freeze = {.total_steps = 20}});
    ZeroOneAdam zero_one(comm, layout, {.total_steps = 20});
    EXPECT_EQ(adam.progress().freeze_step, 4);
    EXPECT_EQ(lamb.progress().freeze_step, 4);
    EXPECT_EQ(zero_one.progress().freeze_step, 10);
    for (int t = 1; t <= 6; ++t)
      for (Optimizer* of :
           {static_cast<Optimizer*>(&adam), static_cast<Optimizer*>(&lamb)}) {
        std::vector<float> grads(8, 1);
        const StepReport report =
            of->step(View(std::span(params)), View(std::span(grads)));
        EXPECT_EQ(report.phase, t <= 4 ? Phase::kExact : Phase::kCompressed);
        EXPECT_EQ(report.bits, t <= 4 ? 8 : 0);
      }
  });
}

}  // namespace
}  // namespace thinwire::optim::run_length_test
