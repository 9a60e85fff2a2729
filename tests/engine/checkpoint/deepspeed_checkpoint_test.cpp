// SPDX-License-Identifier: Apache-2.0
// Runs with DeepSpeed's semantics that are saved after any step, and go on as
// if nothing had happened; load_state_dict() forgets what the reference
// forgets.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/by_hand.h"
#include "support/errors.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "support/same_bits.h"
#include "support/sanitizers.h"

namespace thinwire::engine::deepspeed_checkpoint_test {

namespace {

using config::Config;
using thinwire::test::expect_error;
using thinwire::test::Folder;
using thinwire::test::same_bytes;

// Group by group, which the wrapper for flat groups asks for.
ParameterLayout ordered_layout() {
  return ParameterLayout::of({{"scalar", {}, 0},
                              {"wide", {37, 29}, 0},
                              {"none", {4, 0}, 0},
                              {"odd", {33, 17}, 1},
                              {"last", {3}, 1}});
}

Config config_of(const std::string& optimizer, DType dtype) {
  Config config{.optimizer = test::optimizer_case(optimizer)};
  config.semantics = config::Semantics::kDeepSpeed;
  config.precision.dtype = dtype;
  config.precision.loss_scale = {
      .initial_scale = 1024, .window = 2, .hysteresis = 1};
  config.comm.bucket_elements = 700;
  return config;
}

struct Trained {
  Trained(comm::Communicator& c, const Config& config,
          ParameterLayout of = ordered_layout())
      : layout(std::move(of)),
        comm(c),
        params(layout.size(), config.precision.dtype),
        grads(layout.size(), config.precision.dtype),
        engine([&] {
          kernels::convert(test::initial_params(layout.size(), 0),
                           params.view());
          return Engine(c, layout, config, params.view(), grads.view());
        }()) {}

  EngineReport step(std::int64_t t) {
    const bool overflows = params.dtype() == DType::kFloat16 && t == 5;
    engine.begin_backward();
    const Buffer own = test::gradient(layout, comm.rank(), {t, 0, overflows},
                                      engine.loss_factor(), params.dtype());
    kernels::convert(own.view(), grads.view());
    engine.end_backward();
    return engine.step();
  }

  const ParameterLayout layout;
  comm::Communicator& comm;
  Buffer params;
  Buffer grads;
  Engine engine;
};

constexpr std::int64_t kSteps = 12;
const checkpoint::SaveOptions kQuick{.durable = false};

class DeepSpeedCheckpoint
    : public ::testing::TestWithParam<std::tuple<int, DType, std::string>> {};

INSTANTIATE_TEST_SUITE_P(
    All, DeepSpeedCheckpoint,
    ::testing::Combine(
        ::testing::ValuesIn(thinwire::test::fewer_if_sanitized<int>({3, 2, 1},
                                                                    1)),
        ::testing::Values(DType::kFloat32, DType::kFloat16),
        ::testing::Values("onebit_adam", "onebit_lamb", "zero_one_adam")),
    [](const auto& tested) {
      return fmt::format("{}_{}_w{}", std::get<2>(tested.param),
                         to_string(std::get<1>(tested.param)),
                         std::get<0>(tested.param));
    });

TEST_P(DeepSpeedCheckpoint, GoesOnWithTheSameBitsInEveryStage) {
  const auto& [world, dtype, optimizer] = GetParam();
  const Folder folder;
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    const Config config = config_of(optimizer, dtype);
    Trained main(comm, config);
    std::vector<std::pair<std::int64_t, std::unique_ptr<Trained>>> resumed;
    std::vector<optim::Phase> phases;
    for (std::int64_t t = 1; t <= kSteps; ++t) {
      static_cast<void>(main.engine.save(folder.in("run"), {}, kQuick));
      auto run = std::make_unique<Trained>(comm, config);
      run->step(70);  // has been elsewhere: that leaves no trace
      static_cast<void>(run->engine.load(folder.in("run")));
      EXPECT_TRUE(same_bytes(run->params.view(), main.params.view())) << t;
      resumed.emplace_back(t, std::move(run));
      const EngineReport want = main.step(t);
      phases.push_back(want.phase);
      for (const auto& [since, other] : resumed) {
        if (t >= since + 7) continue;
        const EngineReport report = other->step(t);
        EXPECT_EQ(report.steps, want.steps);
        EXPECT_EQ(report.applied, want.applied);
        EXPECT_EQ(report.phase, want.phase);
        ASSERT_TRUE(same_bytes(other->params.view(), main.params.view()))
            << "saved before step " << since << ", after step " << t;
      }
    }
    for (const optim::Phase phase :
         {optim::Phase::kExact, optim::Phase::kCompressed})
      EXPECT_NE(std::ranges::find(phases, phase), phases.end());
    EXPECT_EQ(std::ranges::find(phases, optim::Phase::kLocal) != phases.end(),
              optimizer == "zero_one_adam");
  });
}

// Only load_state_dict() forgets what the reference forgets.
TEST(DeepSpeedState, ForgetsInLoadStateDictOnly) {
  for (const std::string optimizer :
       {"onebit_adam", "onebit_lamb", "zero_one_adam"}) {
    const Folder folder;
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      const Config config = config_of(optimizer, DType::kFloat32);
      Trained main(comm, config);
      for (std::int64_t t = 1; t <= 8; ++t) main.step(t);
      static_cast<void>(main.engine.save(folder.in("run"), {}, kQuick));
      Trained kept(comm, config);
      static_cast<void>(kept.engine.load(folder.in("run")));
      Trained forgot(comm, config);
      static_cast<void>(forgot.engine.load(folder.in("run")));
      forgot.engine.load_state_dict(forgot.engine.state_dict());
      for (std::int64_t t = 9; t <= 11; ++t)
        for (Trained* const run : {&main, &kept, &forgot}) run->step(t);
      EXPECT_TRUE(same_bytes(kept.params.view(), main.params.view()));
      EXPECT_FALSE(same_bytes(forgot.params.view(), main.params.view()))
          << optimizer;
    });
  }
}

TEST(DeepSpeedCheckpoints, OfZeroOneAdamHasEveryRanksParameters) {
  const Folder folder;
  const Config config = config_of("zero_one_adam", DType::kFloat32);
  std::vector<float> of_rank_0;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Trained main(comm, config);
    for (std::int64_t t = 1; t <= 7; ++t) main.step(t);
    if (comm.rank() == 0) of_rank_0 = test::floats(main.params.view());
    static_cast<void>(main.engine.save(folder.in("run"), {}, kQuick));
    EXPECT_EQ(test::floats(main.params.view()) == of_rank_0, comm.rank() == 0);
  });
  // The weights alone are rank 0's, on any number of ranks.
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Trained other(comm, config);
    expect_error(
        ErrorCode::kCorruptCheckpoint, {"2 ranks", "deepspeed semantics on 3"},
        [&] { static_cast<void>(other.engine.load(folder.in("run"))); });
    static_cast<void>(other.engine.load(folder.in("run"),
                                        {.what = checkpoint::What::kWeights}));
    EXPECT_EQ(test::floats(other.params.view()), of_rank_0);
  });
}

TEST(DeepSpeedCheckpoints, RefusesWhatItsArraysDoNotFit) {
  const Folder folder;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const Config config = config_of("onebit_adam", DType::kFloat32);
    Trained main(comm, config);
    for (std::int64_t t = 1; t <= 5; ++t) main.step(t);
    static_cast<void>(main.engine.save(folder.in("run"), {}, kQuick));
    Trained turned(comm, config,
                   ParameterLayout::of({{"wide", {37, 29}, 0},
                                        {"scalar", {}, 0},
                                        {"none", {4, 0}, 0},
                                        {"odd", {33, 17}, 1},
                                        {"last", {3}, 1}}));
    expect_error(
        ErrorCode::kCorruptCheckpoint, {"order", "'scalar'", "'wide'"},
        [&] { static_cast<void>(turned.engine.load(folder.in("run"))); });
  });
}

TEST(DeepSpeedCheckpoints, GoOnWithBucketsOfAnySize) {
  const Folder folder;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Config config = config_of("onebit_adam", DType::kFloat32);
    Trained main(comm, config);
    for (std::int64_t t = 1; t <= 5; ++t) main.step(t);
    static_cast<void>(main.engine.save(folder.in("run"), {}, kQuick));
    config.comm.bucket_elements = 5000;
    Trained other(comm, config);
    static_cast<void>(other.engine.load(folder.in("run")));
    for (std::int64_t t = 6; t <= 8; ++t)
      for (Trained* const run : {&main, &other}) run->step(t);
    EXPECT_TRUE(same_bytes(other.params.view(), main.params.view()));
  });
}

}  // namespace

}  // namespace thinwire::engine::deepspeed_checkpoint_test
