// SPDX-License-Identifier: Apache-2.0
// What an Engine carries from step to step: learning rates, saved states, and
// parameters that are equal for an evaluation.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/by_hand.h"
#include "optim/states.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace thinwire::engine::engine_state_test {

using config::Config;
using config::Decay;
using config::LearningRateSchedule;
using config::LrRangeTest;
using config::WarmupAndDecay;
using config::WarmupLr;

namespace {

using test::ByHand;
using test::config_of;
using test::Driven;
using test::floats;
using thinwire::test::expect_error;

// ---- learning rates

TEST(EngineSchedule, CountsAppliedStepsAlone) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Config config = config_of("adam", dtype);
      config.schedule.shape = WarmupAndDecay{
          .decay = Decay::kLinear, .warmup_steps = 4, .total_steps = 8};
      ByHand hand(comm, config, {.bucket_elements = 16384});
      Driven driven(comm, config);
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
        driven.backward({.step = t, .overflows = overflows});
        const EngineReport report = driven.engine.step();
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

TEST(EngineSchedule, BeginsAsTheConfigurationSays) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    const auto first_rates = [&](const LearningRateSchedule& schedule) {
      Config config = config_of("adam", DType::kFloat32);
      config.schedule = schedule;
      Driven driven(comm, config);
      driven.backward({.step = 1});
      const double reported = driven.engine.step().learning_rate;
      EXPECT_EQ(reported, driven.engine.optimizer().groups().learning_rate(0));
      return std::pair(reported,
                       driven.engine.optimizer().groups().learning_rate(1));
    };
    using Rates = std::pair<double, double>;
    EXPECT_EQ(first_rates({}), (Rates{0.01, 0.03}));
    EXPECT_EQ(first_rates({WarmupLr{.warmup_min_lr = 0.5}}), (Rates{0.5, 0.5}));
    EXPECT_EQ(first_rates({WarmupAndDecay{.warmup_steps = 2}}),
              (Rates{0.005, 0.015}));
    EXPECT_EQ(first_rates({LrRangeTest{.lr_range_test_min_lr = 0.125}}),
              (Rates{0.125, 0.125}));
  });
}

// ---- states

TEST(EngineState, RefusesWhatDoesNotFitAndGoesOnFromWhatDoes) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Driven driven(comm, config_of("onebit_adam", dtype));
      for (std::int64_t t = 1; t <= 2; ++t) {
        driven.backward({.step = t});
        driven.engine.step();
      }
      const StateDict good = driven.engine.state_dict();
      const auto start = floats(driven.params.view());
      driven.backward({.step = 3});
      driven.engine.step();
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
        refuses(thinwire::test::without(good, key), key);
      StateDict negative = thinwire::test::without(good, "");
      negative.put_integer("engine_steps", -1);
      refuses(negative, "engine_steps");
      if (dtype == DType::kFloat16)
        refuses(thinwire::test::without(good, "masters"), "masters");
      driven.engine.load_state_dict(good);
      EXPECT_TRUE(thinwire::test::same_state(driven.engine.state_dict(), good));
      // Parameters of fp32 are the caller's.
      if (dtype == DType::kFloat32)
        kernels::convert(start, driven.params.view());
      EXPECT_EQ(floats(driven.params.view()), start);
      driven.backward({.step = 3});
      driven.engine.step();
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
        test::Sharded run(comm, test::zero_config(stage, dtype));
        run.backward({.step = 1});
        expect_error(ErrorCode::kFailedPrecondition,
                     {"read_masters: inside a window of accumulation"},
                     [&] { run.engine.read_masters(); });
        run.engine.step();
        const std::vector<float> values =
            test::initial_params(run.layout.size(), 7);
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
        run.backward({.step = 2});
        EXPECT_TRUE(run.engine.step().applied);
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
      Driven driven(comm, config);
      for (std::int64_t t = 1; t <= 8; ++t) {
        hand.step(t, 1, 1, false);
        driven.backward({.step = t});
        driven.engine.step();
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

// In the middle of a window: its gradients wait.
TEST(EngineEvaluation, LeavesAWindowAsItWas) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    Config config = config_of("adam", DType::kFloat16);
    config.gradient_accumulation_steps = 3;
    ByHand hand(comm, config, {.bucket_elements = 16384});
    Driven driven(comm, config);
    for (std::int64_t t = 1; t <= 2; ++t) {
      hand.step(t, 3, 3, false);
      for (std::int64_t micro = 0; micro < 3; ++micro) {
        driven.engine.begin_evaluation();
        driven.engine.end_evaluation();
        driven.backward({t, micro});
        driven.engine.begin_evaluation();
        driven.engine.end_evaluation();
        driven.engine.step();
      }
      ASSERT_EQ(floats(driven.params.view()), floats(hand.params.view())) << t;
    }
  });
}

}  // namespace
}  // namespace thinwire::engine::engine_state_test
