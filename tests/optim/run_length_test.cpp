// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/run_length.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "optim/low_bit/freeze/freeze_point.h"
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
  EXPECT_EQ(zero_one_stages_of_run(500), (ZeroOneStages{250, 8, 60, 4, 4}));
  EXPECT_EQ(zero_one_stages_of_run(1), (ZeroOneStages{1, 8, 1, 4, 4}));
  EXPECT_EQ(zero_one_stages_of_run(9999).local_step_clipper, 4);
  EXPECT_EQ(zero_one_stages_of_run(10'000),
            (ZeroOneStages{5000, 8, 1200, 16, 4}));
  EXPECT_EQ(zero_one_stages_of_run(kMost).var_freeze_step,
            kMost / 100 * 50 + 3);
}

TEST(RunLength, ANamedFreezeStepOverridesTheRunsLength) {
  EXPECT_EQ(freeze_step_of({}), 100'000);
  EXPECT_EQ(freeze_step_of({.total_steps = 300}), 60);
  EXPECT_EQ(freeze_step_of({.step = 7, .total_steps = 300}), 7);
  EXPECT_EQ(freeze_step_of({.step = kAutoFreeze, .total_steps = 300}),
            kAutoFreeze);
}

TEST(RunLength, NamedStagesOfZeroOneAdamAreKept) {
  EXPECT_EQ(zero_one_stages_of(ZeroOneAdamOptions{}),
            (ZeroOneStages{100'000, 16, 32'678, 16, 0}));
  EXPECT_EQ(zero_one_stages_of(ZeroOneAdamOptions{.total_steps = 500,
                                                  .local_step_clipper = 1}),
            (ZeroOneStages{250, 8, 60, 1, 4}));
  EXPECT_EQ(zero_one_stages_of(ZeroOneAdamOptions{.total_steps = 500,
                                                  .var_freeze_step = 9,
                                                  .var_update_scaler = 2,
                                                  .local_step_scaler = 3,
                                                  .warmup_bits = 0}),
            (ZeroOneStages{9, 2, 3, 4, 0}));
}

// Twenty steps: a fifth of them are exact, or half of 0/1 Adam's may move the
// variance.
TEST(RunLength, DeterminesTheStagesIfNothingElseIsNamed) {
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

// ---- the automatic freeze

// The step at which a sequence of norms fires, or 0.
std::int64_t fires(const FreezeOptions& options,
                   const std::function<double(std::int64_t)>& norm) {
  AutoFreeze freeze(options);
  for (std::int64_t t = 1; t <= 2000; ++t)
    if (freeze.observe(norm(t))) return t;
  return 0;
}

TEST(AutoFreeze, OfASettledVarianceWaitsForAWindowAndTheEarliestStep) {
  const auto earliest = [](const FreezeOptions& options) {
    return fires(options, [](auto) { return 1.0; });
  };
  // A window of 50 steps at least, and t must exceed it.
  EXPECT_EQ(earliest({.min_step = 1}), 51);
  EXPECT_EQ(earliest({.min_step = 70}), 70);
  EXPECT_EQ(earliest({.total_steps = 9000}), 900);
  EXPECT_EQ(earliest({.lr_warmup_steps = 1500, .total_steps = 9000}), 1500);
  // A warm-up that ends early is no reason to freeze early.
  EXPECT_EQ(earliest({.lr_warmup_steps = 50, .total_steps = 9000}), 900);
  EXPECT_EQ(earliest({.lr_warmup_steps = 0}), 100);
  EXPECT_EQ(earliest({}), 100);
  // A short run freezes at a fifth of its steps, whatever the least may be.
  EXPECT_EQ(earliest({.total_steps = 200}), 40);
  // The latest step is not before the earliest.
  EXPECT_EQ(earliest({.lr_warmup_steps = 500, .total_steps = 1000}), 500);
  EXPECT_EQ(earliest({.lr_warmup_steps = 500, .max_step = 20}), 500);
  EXPECT_EQ(earliest({.max_step = 20}), 100);
  EXPECT_EQ(earliest({.min_step = 10, .max_step = 20}), 20);
}

// One that grows by a fifth every step, and one of 0.
TEST(AutoFreeze, OfAVarianceThatNeverSettlesComesAtTheLatestStep) {
  const auto growing = [](std::int64_t t) {
    return std::pow(1.2, static_cast<double>(t));
  };
  EXPECT_EQ(fires({.min_step = 1, .max_step = 57}, growing), 57);
  EXPECT_EQ(fires({.min_step = 1, .max_step = 500}, [](auto) { return 0.0; }),
            500);
}

TEST(AutoFreeze, AfterTheFirstHundredStepsTheWindowIsHalfOfThem) {
  // A mean over all steps of what falls as 1 / t: any fixed window would soon
  // see no change, half of all steps sees 2.
  const auto falling = [](std::int64_t t) {
    return 1 / static_cast<double>(t);
  };
  EXPECT_EQ(fires({.min_step = 1}, falling), 0);
  // From step 300 on 1.15 times what it was: near enough at once.
  const auto rises_at_300 = [](double to) {
    return [to](std::int64_t t) { return t < 300 ? 1.0 : to; };
  };
  EXPECT_EQ(fires({.min_step = 300}, rises_at_300(1.15)), 300);
  // 1.5 times: not before the window begins behind it.
  EXPECT_EQ(fires({.min_step = 300}, rises_at_300(1.5)), 599);
}

TEST(AutoFreeze, FallingAndRisingCountAlike) {
  const auto settles_at_200 = [](double sign) {
    return [sign](std::int64_t t) {
      return std::exp(sign * 0.05 *
                      static_cast<double>(std::min<std::int64_t>(t, 200)));
    };
  };
  const auto up = fires({.min_step = 1}, settles_at_200(1));
  const auto down = fires({.min_step = 1}, settles_at_200(-1));
  EXPECT_EQ(up, down);
  // |ln ratio| <= -ln 0.85 = 0.163: all but 3 of a window's t / 2 steps must
  // lie behind step 200.
  EXPECT_EQ(up, 393);
}

}  // namespace
}  // namespace thinwire::optim::run_length_test
