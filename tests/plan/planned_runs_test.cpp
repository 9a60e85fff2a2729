// SPDX-License-Identifier: Apache-2.0
// Whole runs by the planner, and how it says what it has measured.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/errors.h"
#include "thinwire/plan/measure.h"
#include "thinwire/plan/plan_table.h"
#include "thinwire/plan/workload.h"

namespace thinwire::plan::planned_runs_test {
namespace {

// Kernels as an EPYC (Zen 4) of 2.6 GHz has them, 100 Mbit/s.
const Compute kEpyc{.encode = .80e-9,
                    .serve = .17e-9,
                    .update = .73e-9,
                    .norm = .17e-9,
                    .exact_update = .92e-9,
                    .sum = .17e-9,
                    .local_step = 1.2e-9,
                    .sync_encode = 1.4e-9,
                    .sync_update = .8e-9,
                    .fresh = .5e-9,
                    .store = .3e-9,
                    .quantize = .8e-9,
                    .quantized_mean = .3e-9,
                    .difference = .4e-9,
                    .dequantize = .3e-9};
const Workload kSmallGpt{.parameters = 6.6e6,
                         .forward_seconds = .05 / 3,
                         .backward_seconds = .1 / 3};

const Network kSlow{.ranks = 2, .gbps = 0.1, .latency_seconds = 100e-6};

std::vector<Prediction> plan_of_run(std::int64_t steps, int warmup_bits = 0) {
  return plan(workload_of_run(kSmallGpt, steps, {}, warmup_bits, nullptr),
              kSlow, kEpyc);
}

const PlannedRun& run_of(const std::vector<Prediction>& all, Way way) {
  return *all[static_cast<std::size_t>(way)].run;
}

// Seconds per step that an EPYC was measured to take on that link.
constexpr double kExactStep = 2.359, kZero4Step = .303, kOnebitStep = .116;

TEST(PlannedRuns, WarmUpDecidesShortRunsAndCompressionLongRuns) {
  const auto brief = plan_of_run(300), lengthy = plan_of_run(30'000);
  EXPECT_EQ(run_of(brief, Way::kOnebitAdam).exact_steps, 60);
  EXPECT_EQ(run_of(lengthy, Way::kOnebitAdam).exact_steps, 1000);
  EXPECT_LT(run_of(brief, Way::kZero4).seconds,
            run_of(brief, Way::kOnebitAdam).seconds);
  EXPECT_GT(run_of(lengthy, Way::kZero4).seconds,
            run_of(lengthy, Way::kOnebitAdam).seconds);
  // By the step, 1-bit Adam is faster in both.
  EXPECT_LT(brief[static_cast<std::size_t>(Way::kOnebitAdam)].step_seconds,
            brief[static_cast<std::size_t>(Way::kZero4)].step_seconds);
}

TEST(PlannedRuns, AddUpTheTimesOfTheirSteps) {
  for (const auto& [steps, exact] : {std::pair(300, 60), {30'000, 1000}}) {
    const auto all = plan_of_run(steps);
    const auto near = [&](Way way, double measured) {
      EXPECT_NEAR(run_of(all, way).seconds / measured, 1, 0.2)
          << to_string(way) << ", " << steps << " steps";
    };
    near(Way::kExact, steps * kExactStep);
    near(Way::kZero4, steps * kZero4Step);
    near(Way::kOnebitAdam, exact * kExactStep + (steps - exact) * kOnebitStep);
  }
}

// A quarter and an eighth of the bytes of exact steps, in about as much time.
TEST(PlannedRuns, ALowBitWarmUpTakesAFractionOfAnExactOne) {
  for (const std::int64_t steps : {300, 30'000}) {
    const PlannedRun exact = run_of(plan_of_run(steps), Way::kOnebitAdam);
    const auto all = plan_of_run(steps);
    const Prediction& by_step = all[static_cast<std::size_t>(Way::kOnebitAdam)];
    const double compressed =
        static_cast<double>(exact.compressed_steps) * by_step.traffic.bytes;
    for (const int bits : {4, 8}) {
      const PlannedRun run = run_of(plan_of_run(steps, bits), Way::kOnebitAdam);
      EXPECT_EQ(run.warmup_bits, bits);
      EXPECT_EQ(run.exact_steps, exact.exact_steps);
      EXPECT_NEAR((run.bytes - compressed) / (exact.bytes - compressed),
                  bits / 32.0, 0.002);
      const double rest =
          static_cast<double>(exact.compressed_steps) * by_step.step_seconds;
      const double part = (run.seconds - rest) / (exact.seconds - rest);
      EXPECT_GT(part, bits / 32.0);
      EXPECT_LT(part, bits / 32.0 + 0.05);
    }
  }
  // More than twice as fast, which makes it the fastest of short runs, too.
  EXPECT_GT(run_of(plan_of_run(300), Way::kOnebitAdam).seconds,
            2 * run_of(plan_of_run(300, 8), Way::kOnebitAdam).seconds);
  EXPECT_GT(run_of(plan_of_run(300), Way::kLean).seconds,
            2 * run_of(plan_of_run(300, 8), Way::kLean).seconds);
  for (const Way way : {Way::kExact, Way::kZeroOneAdam})
    EXPECT_EQ(run_of(plan_of_run(300), way).seconds,
              run_of(plan_of_run(300, 8), way).seconds);
}

// Variance steps 1, 2 and 4, momentum in 3; then syncs at intervals 1, 2, 4.
TEST(PlannedRuns, OfZeroOneAdamFollowTheSchedule) {
  Workload work = kSmallGpt;
  work.run = RunStages{.steps = 12,
                       .zero_one = {.var_freeze_step = 4,
                                    .var_update_scaler = 2,
                                    .local_step_scaler = 2,
                                    .local_step_clipper = 4}};
  const auto step = [&](Way way, double variance, double sync) {
    Workload one = work;
    one.steps_per_variance_step = variance;
    one.steps_per_sync = sync;
    return std::pair(step_seconds(way, false, one, kSlow, kEpyc),
                     traffic_of(way, false, one, kSlow).bytes);
  };
  const PlannedRun run =
      planned_run(Way::kZeroOneAdam, false, work, kSlow, kEpyc);
  EXPECT_EQ(run.exact_steps, 3);
  EXPECT_EQ(run.compressed_steps, 1 + 2 + 1 + 1);
  EXPECT_EQ(run.local_steps, 1 + 3);
  const auto variance = step(Way::kZeroOneAdam, 1, 4);
  const auto momentum = step(Way::kOnebitAdam, 0, 4);
  double seconds = 3 * variance.first + momentum.first;
  double bytes = 3 * variance.second + momentum.second;
  for (const auto& [steps, interval] : {std::pair(2, 1), {2, 2}, {4, 4}}) {
    const auto one = step(Way::kZeroOneAdam, 0, interval);
    seconds += steps * one.first;
    bytes += steps * one.second;
  }
  EXPECT_NEAR(run.seconds, seconds, 1e-9);
  EXPECT_NEAR(run.bytes, bytes, 1e-3);
}

TEST(PlannedRuns, OfZeroOneAdamSendItsVarianceStepsInTheirBits) {
  Workload work = kSmallGpt;
  work.run = RunStages{.steps = 3,
                       .zero_one = {.var_freeze_step = 3, .warmup_bits = 4}};
  const PlannedRun run =
      planned_run(Way::kZeroOneAdam, false, work, kSlow, kEpyc);
  EXPECT_EQ(run.exact_steps, 3);
  EXPECT_EQ(run.warmup_bits, 4);
  Workload variance = work;
  variance.onebit_bits = 4;
  EXPECT_NEAR(run.bytes,
              3 * traffic_of(Way::kOnebitAdam, false, variance, kSlow).bytes,
              1e-3);
  work.run->zero_one.warmup_bits = 0;
  const PlannedRun exact =
      planned_run(Way::kZeroOneAdam, false, work, kSlow, kEpyc);
  EXPECT_EQ(exact.warmup_bits, 0);
  EXPECT_GT(exact.bytes, 7 * run.bytes);
  EXPECT_GT(exact.seconds, 4 * run.seconds);
}

TEST(PlannedRuns, StagesFollowFromTheRunUnlessNamed) {
  const auto run = [](std::optional<std::int64_t> freeze_step,
                      const config::Config* config) {
    return workload_of_run({.parameters = 1}, 20'000, freeze_step, {}, config);
  };
  const Workload by_rule = run({}, nullptr);
  EXPECT_EQ(by_rule.run->freeze_step, 1000);
  EXPECT_EQ(by_rule.run->zero_one, optim::zero_one_stages_of_run(20'000));
  EXPECT_EQ(by_rule.steps_per_sync, 16);
  config::Config onebit;
  onebit.optimizer = optim::OnebitAdamOptions{.freeze = {.step = 70}};
  EXPECT_EQ(run({}, &onebit).run->freeze_step, 70);
  EXPECT_EQ(run(80, &onebit).run->freeze_step, 80);
  EXPECT_EQ(by_rule.run->warmup_bits, 8);
  EXPECT_EQ(run({}, &onebit).run->warmup_bits, 0);
  EXPECT_EQ(run(80, nullptr).run->warmup_bits, 0);
  onebit.optimizer =
      optim::OnebitAdamOptions{.freeze = {.step = 70, .warmup_bits = 4}};
  EXPECT_EQ(run({}, &onebit).run->warmup_bits, 4);
  EXPECT_EQ(workload_of_run({.parameters = 1}, 20'000, {}, 0, &onebit)
                .run->warmup_bits,
            0);
  config::Config zero_one;
  zero_one.optimizer = optim::ZeroOneAdamOptions{.var_freeze_step = 9'000,
                                                 .local_step_clipper = 8};
  const Workload named = run({}, &zero_one);
  EXPECT_EQ(named.run->zero_one.var_freeze_step, 9'000);
  EXPECT_EQ(named.run->zero_one.local_step_scaler,
            by_rule.run->zero_one.local_step_scaler);
  EXPECT_EQ(named.steps_per_sync, 8);
}

TEST(PlannedRuns, TheTableRanksByTheWholeRun) {
  const std::string brief = plan_table(plan_of_run(300));
  EXPECT_LT(brief.find("\nzero 4/4"), brief.find("\nonebit_adam"));
  EXPECT_NE(brief.find("onebit_adam: 60 steps of the run are exact, 240 com"),
            std::string::npos);
  EXPECT_NE(brief.find(" for 300 steps\n"), std::string::npos);
  EXPECT_NE(
      plan_table(plan_of_run(300, 8))
          .find("onebit_adam: 60 steps of the run are exact, over 8 bits, "
                "240 com"),
      std::string::npos);
  EXPECT_NE(plan_json(plan_of_run(300, 8)).find("\"warmup_bits\": 8"),
            std::string::npos);
  const std::string lengthy = plan_table(plan_of_run(30'000));
  EXPECT_GT(lengthy.find("\nzero 4/4"), lengthy.find("\nonebit_adam"));
  const std::string json = plan_json(plan_of_run(300));
  EXPECT_NE(json.find("\"run_steps\": {\"exact\": 60, \"compressed\": 240"),
            std::string::npos)
      << json;
}

TEST(PlannedRuns, RefuseValuesOutOfRange) {
  const Workload work{.parameters = 1e6};
  for (const std::int64_t steps : {std::int64_t{0}, RunStages::kMostSteps + 1})
    test::expect_invalid(
        {"run.steps must be in [1, 100000000], got " + std::to_string(steps)},
        [&] {
          (void)plan(workload_of_run(work, steps, {}, {}, nullptr), {}, {});
        });
  test::expect_invalid({"run.warmup_bits must be 0, 4 or 8, got 5"}, [&] {
    (void)plan(workload_of_run(work, 10, {}, 5, nullptr), {}, {});
  });
  test::expect_invalid({"run.freeze_step must be >= 1, got 0"}, [&] {
    (void)plan(workload_of_run(work, 10, 0, {}, nullptr), {}, {});
  });
}

// ---- what was measured

TEST(MeasuredText, GivesTheSpreadOfEachFigure) {
  MeasuredCompute compute;
  compute.encode = 0.4e-9;
  compute.spread.encode = 0.034;
  EXPECT_NE(describe(compute).find("encode 0.40 (3 %), serve 0.00 (0 %)"),
            std::string::npos);
  MeasuredNetwork network;
  network.ranks = 2;
  network.spread = {.rate = 0.01, .latency = 0.07, .message = 0.12};
  EXPECT_NE(describe(network).find("10 Gbit/s (1 %), latency 50 us (7 %), 5 us "
                                   "per message (12 %)"),
            std::string::npos);
  EXPECT_EQ(describe(Network{}).find('%'), std::string::npos);
}

TEST(MeasuredText, WarnsOfFiguresThatDifferByMoreThanAFifth) {
  MeasuredCompute compute;
  compute.spread.encode = compute.spread.norm = 0.2;
  EXPECT_EQ(unstable(compute), "");
  compute.spread.norm = 0.35;
  EXPECT_NE(unstable(compute).find("more than 20 % (norm 35 %)"),
            std::string::npos);
  EXPECT_NE(describe(compute).find(unstable(compute)), std::string::npos);
  MeasuredNetwork network;
  EXPECT_EQ(unstable(network), "");
  network.inner_spread.latency = 0.5;
  EXPECT_NE(unstable(network).find("(latency inside a host 50 %)"),
            std::string::npos);
}

}  // namespace
}  // namespace thinwire::plan::planned_runs_test
