// SPDX-License-Identifier: Apache-2.0
// An Engine keeps learning rates, saved states and values that a caller sets
// from step to step. Parameters are equal during an evaluation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/by_hand.h"
#include "optim/states.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "thinwire/comm/local.h"

namespace thinwire::engine::test::engine_state_test {
namespace {

using config::Decay;
using config::WarmupAndDecay;

// ---- learning rates

TEST(EngineSchedule, CountsAppliedStepsAlone) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Config config = config_of("adam", dtype);
      config.schedule.shape = WarmupAndDecay{
          .decay = Decay::kLinear, .warmup_steps = 4, .total_steps = 8};
      ByHand hand(comm, config, {.bucket_elements = 16384});
      Sharded driven(comm, config);
      // Of group 0, whose rate is 0.01; group 1 has three times as much.
      constexpr double kRates[] = {0.0025, 0.005, 0.0075, 0.01,
                                   0.0075, 0.005, 0.0025, 0};
      std::size_t applied = 0;
      for (std::int64_t t = 1; applied < 8; ++t) {
        const bool overflows = t == 1 || t == 3 || t == 4;
        const double rate = kRates[applied];
        hand.optimizer->groups().set_learning_rate(0, rate);
        hand.optimizer->groups().set_learning_rate(1, 3 * rate);
        hand.step(t, 1, 1, overflows);
        const EngineReport report =
            driven.step({.step = t, .overflows = overflows});
        EXPECT_DOUBLE_EQ(report.learning_rate, rate) << t;
        EXPECT_EQ(report.applied, !overflows);
        if (report.applied) ++applied;
        EXPECT_EQ(report.steps, static_cast<std::int64_t>(applied));
        EXPECT_EQ(driven.engine.optimizer().progress().steps, report.steps);
      }
      EXPECT_EQ(driven.engine.optimizer().progress().skipped, 3);
      for (std::size_t g = 0; g < 2; ++g)
        EXPECT_EQ(driven.engine.optimizer().groups().learning_rate(g), 0);
    });
}

// ---- states

TEST(EngineState, RefusesStatesThatDoNotFitAndContinuesFromOthers) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded driven(comm, config_of("onebit_adam", dtype));
      for (std::int64_t t = 1; t <= 2; ++t) driven.step({.step = t});
      const StateDict good = driven.engine.state_dict();
      const auto start = floats(driven.params.view());
      driven.step({.step = 3});
      const StateDict before = driven.engine.state_dict();
      const auto params = floats(driven.params.view());
      const auto refuses = [&](const StateDict& state, std::string_view part) {
        expect_error(ErrorCode::kCorruptCheckpoint, {part},
                     [&] { driven.engine.load_state_dict(state); });
        EXPECT_TRUE(
            thinwire::test::same_state(driven.engine.state_dict(), before));
        EXPECT_EQ(floats(driven.params.view()), params);
      };
      for (const char* key : {"engine_steps", "exp_avg", "step", "layout"})
        refuses(without(good, key), key);
      StateDict negative = without(good, "");
      negative.put_integer("engine_steps", -1);
      refuses(negative, "engine_steps");
      if (dtype == DType::kFloat16)
        refuses(without(good, "masters"), "masters");
      driven.engine.load_state_dict(good);
      EXPECT_TRUE(thinwire::test::same_state(driven.engine.state_dict(), good));
      // Parameters of fp32 are the caller's.
      if (dtype == DType::kFloat32)
        kernels::convert(start, driven.params.view());
      EXPECT_EQ(floats(driven.params.view()), start);
      driven.step({.step = 3});
      EXPECT_EQ(floats(driven.params.view()), params);
      EXPECT_TRUE(
          thinwire::test::same_state(driven.engine.state_dict(), before));
    });
}

// ---- parameters that the caller sets

TEST(EngineMasters, AreTheParametersThatWereSet) {
  for (const int stage : {0, 1, 2})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      comm::run_local_ranks(2, [&](comm::Communicator& comm) {
        Sharded run(comm, zero_config(stage, dtype));
        run.backward({.step = 1});
        expect_error(ErrorCode::kFailedPrecondition,
                     {"read_masters: inside a window of accumulation"},
                     [&] { run.engine.read_masters(); });
        run.engine.step();
        const std::vector<float> values = initial_params(run.layout.size(), 7);
        kernels::convert(values, run.params.view());
        run.engine.read_masters();
        const std::vector<float> set = floats(run.params.view());
        for (const Parameter& p : run.layout.parameters()) {
          const auto begin =
              set.begin() + static_cast<std::ptrdiff_t>(p.offset);
          EXPECT_EQ(run.engine.whole_values().parameter(p.name),
                    std::vector<float>(
                        begin, begin + static_cast<std::ptrdiff_t>(p.size)))
              << p.name << ", stage " << stage;
        }
        EXPECT_TRUE(run.step({.step = 2}).applied);
      });
}

// ---- whole values and the loss scale

TEST(EngineValues, FullParametersAreSetWhereverTheyAre) {
  for (const int stage : {0, 2})
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
      comm::run_local_ranks(2, [&](comm::Communicator& comm) {
        Sharded sharded(comm, zero_config(stage, dtype));
        const std::vector<float> values{1.0F + 0x1p-20F, 2, 3};
        const auto before = sharded.engine.whole_values().parameter("block");
        sharded.engine.whole_values().set_parameter("last", values);
        EXPECT_EQ(sharded.engine.whole_values().parameter("last"), values);
        EXPECT_EQ(sharded.engine.whole_values().parameter("block"), before);
        const std::size_t at = sharded.layout.parameter("last").offset;
        EXPECT_EQ(floats(sharded.params.view().subview(at, 3)),
                  (std::vector<float>{
                      dtype == DType::kFloat32 ? values[0] : 1.0F, 2, 3}));
      });
}

TEST(EngineValues, TheLossScaleContinuesFromASetValue) {
  for (const int stage : {0, 1})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded sharded(comm, zero_config(stage, DType::kFloat16));
      sharded.engine.set_loss_scale(64);
      EXPECT_EQ(sharded.engine.loss_scale(), 64);
      EXPECT_EQ(sharded.engine.loss_factor(), 64);
      EXPECT_EQ(sharded.step({1, 0, true}).loss_scale, 64);
      EXPECT_EQ(sharded.engine.loss_scale(), 32);
      for (const double wrong : {0.0, -1.0, 1e30})
        expect_invalid({"loss_scale", "in ["},
                       [&] { sharded.engine.set_loss_scale(wrong); });
      expect_invalid({"loss_scale", "16", "17"},
                     [&] { sharded.engine.set_loss_scale(16 + comm.rank()); });
      EXPECT_EQ(sharded.engine.loss_scale(), 32);
      Sharded bf16(comm, zero_config(stage, DType::kBFloat16));
      expect_error(ErrorCode::kFailedPrecondition, {"set_loss_scale", "fp16"},
                   [&] { bf16.engine.set_loss_scale(2); });
    });
}

// ---- evaluation

TEST(EngineEvaluation, HasEqualParametersOnAllRanks) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16}) {
    std::vector<std::vector<float>> params(3);
    std::vector<std::vector<float>> masters(3);
    int differed = 0;
    comm::run_local_ranks(3, [&](comm::Communicator& comm) {
      const auto rank = static_cast<std::size_t>(comm.rank());
      const Config config = config_of("zero_one_adam", dtype);
      ByHand hand(comm, config, {.bucket_elements = 16384});
      Sharded driven(comm, config);
      for (std::int64_t t = 1; t <= 8; ++t) {
        hand.step(t, 1, 1, false);
        driven.step({.step = t});
        params[rank] = floats(driven.params.view());
        comm.barrier();
        if (comm.rank() == 0 && params[0] != params[2]) ++differed;
        comm.barrier();

        optim::synchronize(*hand.optimizer, hand.params.view());
        driven.engine.begin_evaluation();
        params[rank] = floats(driven.params.view());
        masters[rank] = floats(driven.engine.masters());
        comm.barrier();
        EXPECT_EQ(params[rank], params[0]) << t;
        EXPECT_EQ(masters[rank], masters[0]) << t;
        EXPECT_EQ(params[rank], floats(hand.params.view())) << t;
        comm.barrier();
        driven.engine.end_evaluation();
      }
    });
    EXPECT_GT(differed, 0);  // or nothing was tested
  }
}

// ---- learning rates of the caller's own

Config scheduled_config(DType dtype = DType::kFloat32) {
  Config config{.optimizer = optimizer_case("adam")};
  config.precision.dtype = dtype;
  config.precision.loss_scale.initial_scale = 1024;  // skips nothing
  config.schedule.shape = WarmupAndDecay{.warmup_steps = 4};
  return config;
}

// Group 0 has 0.01, group 1 three times as much.
double scheduled(std::size_t group, std::int64_t step) {
  return (group == 0 ? 0.01 : 0.03) *
         std::min(1.0, static_cast<double>(step) / 4);
}

double rate(const Engine& engine, std::size_t group) {
  return engine.optimizer().groups().learning_rate(group);
}

TEST(EngineRates, ARateSetByHandHolds) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Sharded driven(comm, scheduled_config(dtype));
      driven.step({1});
      driven.engine.learning_rates().set(1, 0.5);
      for (std::int64_t t = 2; t <= 3; ++t) {
        EXPECT_DOUBLE_EQ(driven.step({t}).learning_rate, scheduled(0, t));
        EXPECT_EQ(rate(driven.engine, 1), 0.5);
      }
      driven.engine.learning_rates().set(0);
      const auto before = floats(driven.params.view());
      EXPECT_EQ(driven.step({4}).learning_rate, 0);
      EXPECT_EQ(floats(driven.params.view()), before);
      driven.engine.learning_rates().set_schedule({});
      EXPECT_DOUBLE_EQ(driven.step({5}).learning_rate, scheduled(0, 5));
      EXPECT_DOUBLE_EQ(rate(driven.engine, 1), scheduled(1, 5));
    });
}

TEST(EngineRates, AScheduleOfOnesOwnIsAskedBeforeEveryStep) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    Sharded driven(comm, scheduled_config());
    driven.engine.learning_rates().set(1, 0.5);
    driven.engine.learning_rates().set_schedule(
        [](double base, std::int64_t applied_steps) {
          return base / std::pow(2.0, static_cast<double>(applied_steps));
        });
    for (std::int64_t t = 1; t <= 3; ++t) {
      const double half = std::pow(0.5, static_cast<double>(t - 1));
      EXPECT_DOUBLE_EQ(driven.step({t}).learning_rate, 0.01 * half);
      EXPECT_DOUBLE_EQ(rate(driven.engine, 1), 0.03 * half);
    }
    driven.engine.learning_rates().set(0, 0.25);
    EXPECT_EQ(driven.step({4}).learning_rate, 0.25);
    EXPECT_DOUBLE_EQ(rate(driven.engine, 1), 0.03 / 8);
  });
}

// ZeRO's own setter is within reach: it does what it says.
TEST(EngineRates, ZerosSetterWorksToo) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    Config config = test::zero_config(2);
    config.schedule = scheduled_config().schedule;
    Sharded sharded(comm, config);
    sharded.step({1});
    sharded.engine.zero().groups().set_learning_rate(0, 0.5);
    for (std::int64_t t = 2; t <= 3; ++t) {
      EXPECT_EQ(sharded.step({t}).learning_rate, 0.5);
      EXPECT_DOUBLE_EQ(rate(sharded.engine, 1), scheduled(1, t));
    }
  });
}

TEST(EngineRates, AreRefusedWhereTheyAreNone) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    Sharded driven(comm, scheduled_config());
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const double bad : {-1.0, nan, HUGE_VAL}) {
      expect_invalid({"learning_rate"},
                     [&] { driven.engine.learning_rates().set(0, bad); });
      driven.engine.learning_rates().set_schedule(
          [&](double base, std::int64_t /*steps*/) {
            return base > 0.02 ? bad : base;  // group 1's
          });
      const auto before = floats(driven.params.view());
      driven.backward({.step = 1});
      expect_invalid({"schedule", "finite"}, [&] { driven.engine.step(); });
      EXPECT_EQ(floats(driven.params.view()), before);
      driven.engine.learning_rates().set_schedule({});
      EXPECT_TRUE(driven.engine.step().applied);
    }
    expect_invalid({"group"},
                   [&] { driven.engine.learning_rates().set(2, 0.1); });
  });
}

TEST(EngineRates, RatesSetByHandArePartOfTheState) {
  for (const int stage : {0, 2})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Config config = test::zero_config(stage);
      config.schedule = scheduled_config().schedule;
      Sharded first(comm, config);
      first.step({1});
      EXPECT_FALSE(
          first.engine.state_dict().has_array("engine_learning_rates"));
      first.engine.learning_rates().set(1, 0.5);
      first.step({2});
      StateDict state = first.engine.state_dict();
      Sharded second(comm, config);
      second.engine.learning_rates().set(0, 0.25);  // loading takes it back
      kernels::convert(first.params.view(), second.params.view());
      second.engine.load_state_dict(state);
      for (std::int64_t t = 3; t <= 4; ++t) {
        EXPECT_DOUBLE_EQ(second.step({t}).learning_rate, scheduled(0, t));
        first.step({t});
        EXPECT_EQ(rate(second.engine, 1), 0.5);
        EXPECT_EQ(floats(second.params.view()), floats(first.params.view()));
      }
      const double bad[] = {-1, 0.5};
      state.put("engine_learning_rates", ConstView(bad, 2, DType::kFloat64));
      expect_error(ErrorCode::kCorruptCheckpoint, {"engine_learning_rates"},
                   [&] { second.engine.load_state_dict(state); });
    });
}

}  // namespace
}  // namespace thinwire::engine::test::engine_state_test
