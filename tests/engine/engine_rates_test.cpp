// SPDX-License-Identifier: Apache-2.0
// Learning rates of the caller's own.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/by_hand.h"
#include "support/errors.h"
#include "thinwire/comm/local.h"

namespace thinwire::engine::test::engine_rates_test {
namespace {

using config::WarmupAndDecay;

Config config_of(DType dtype = DType::kFloat32) {
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
      Driven driven(comm, config_of(dtype));
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
    Driven driven(comm, config_of());
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
    config.schedule = config_of().schedule;
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
    Driven driven(comm, config_of());
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const double bad : {-1.0, nan, HUGE_VAL}) {
      expect_error(ErrorCode::kInvalidArgument, {"learning_rate"},
                   [&] { driven.engine.learning_rates().set(0, bad); });
      driven.engine.learning_rates().set_schedule(
          [&](double base, std::int64_t /*steps*/) {
            return base > 0.02 ? bad : base;  // group 1's
          });
      const auto before = floats(driven.params.view());
      driven.backward({.step = 1});
      expect_error(ErrorCode::kInvalidArgument, {"schedule", "finite"},
                   [&] { driven.engine.step(); });
      EXPECT_EQ(floats(driven.params.view()), before);
      driven.engine.learning_rates().set_schedule({});
      EXPECT_TRUE(driven.engine.step().applied);
    }
    expect_error(ErrorCode::kInvalidArgument, {"group"},
                 [&] { driven.engine.learning_rates().set(2, 0.1); });
  });
}

TEST(EngineRates, WhatWasSetByHandIsPartOfTheState) {
  for (const int stage : {0, 2})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Config config = test::zero_config(stage);
      config.schedule = config_of().schedule;
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
}  // namespace thinwire::engine::test::engine_rates_test
