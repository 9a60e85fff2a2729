// SPDX-License-Identifier: Apache-2.0
// ZeRO through an Engine: the bits of training without it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/by_hand.h"
#include "support/ranks.h"

namespace thinwire::engine::engine_zero_test {

using config::Config;

namespace {

using test::ByHand;
using test::floats;
using test::Sharded;
using test::zero_config;

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16,
                             DType::kBFloat16};

class EngineZero : public ::testing::TestWithParam<std::tuple<int, DType>> {};

INSTANTIATE_TEST_SUITE_P(All, EngineZero,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::ValuesIn(kDTypes)),
                         [](const auto& tested) {
                           return fmt::format(
                               "{}_w{}", to_string(std::get<1>(tested.param)),
                               std::get<0>(tested.param));
                         });

// Steps that are skipped on all ranks for the sake of one, another start on
// each rank, parameters that some ranks leave out.
TEST_P(EngineZero, EqualsWhatIsWrittenByHand) {
  const auto& [world, dtype] = GetParam();
  for (const char* optimizer : {"adam", "lamb"})
    for (const double clipping : {0.0, 20.0})
      for (const int stage : {1, 2})
        comm::run_local_ranks(world, [&,
                                      type = dtype](comm::Communicator& comm) {
          Config config = zero_config(stage, type);
          config.optimizer = test::optimizer_case(optimizer);
          config.gradient_clipping = clipping;
          ByHand hand(comm, config, {.max_grad_norm = clipping});
          Sharded sharded(comm, config);
          for (std::int64_t t = 1; t <= 5; ++t) {
            const bool overflows = t == 3 && comm.rank() == 0;
            const auto want = hand.step(t, 1, 1, overflows);
            sharded.backward({t, 0, overflows}, t % 2 == 0
                                                    ? sharded.unused()
                                                    : std::set<std::size_t>{});
            const EngineReport report = sharded.engine.step();
            EXPECT_EQ(report.applied, want.applied);
            EXPECT_EQ(report.applied, t != 3);
            if (report.applied) {
              EXPECT_EQ(report.grad_norm, want.grad_norm);
              EXPECT_EQ(report.clip_factor, want.clip_factor);
              EXPECT_EQ(report.clip_factor<1, clipping> 0);
            }
            EXPECT_EQ(report.steps, t < 3 ? t : t - 1);
            EXPECT_EQ(sharded.engine.loss_scale(), hand.loss_scale());
            ASSERT_EQ(floats(sharded.params.view()), floats(hand.params.view()))
                << optimizer << " at stage " << stage << ", step " << t;
          }
        });
}

// Of one rank stage 2 has the same sums; of more it reduces every backward.
TEST_P(EngineZero, Item26AddsUpAWindow) {
  const auto& [world, dtype] = GetParam();
  for (const int stage : {1, 2})
    for (const bool managed : {true, false})
      for (const bool is_set : {true, false})
        comm::run_local_ranks(world, [&,
                                      type = dtype](comm::Communicator& comm) {
          const Config config = zero_config(stage, type, 3, managed);
          ByHand hand(comm, config, {});
          Sharded sharded(comm, config);
          for (std::int64_t t = 1; t <= 4; ++t) {
            // Who sets boundaries has windows of any length.
            const std::int64_t count = is_set ? t : 3;
            const auto want = hand.step(t, count, 3, false);
            for (std::int64_t micro = 0; micro < count; ++micro) {
              const bool is_last = micro == count - 1;
              if (is_set) sharded.engine.set_accumulation_boundary(is_last);
              sharded.backward({t, micro});
              if (!managed && !is_set && !is_last) continue;
              const EngineReport report = sharded.engine.step();
              EXPECT_EQ(report.at_boundary, is_last);
              if (!is_last) continue;
              EXPECT_NEAR(report.grad_norm, want.grad_norm,
                          want.grad_norm * 0.01);
            }
            const bool is_rounded = stage == 2 && comm.size() > 1;
            if (is_rounded) continue;
            ASSERT_EQ(floats(sharded.params.view()), floats(hand.params.view()))
                << "stage " << stage << ", step " << t;
          }
        });
}

// The smallest of the numbers that a configuration has for it.
TEST(EngineZeroBuckets, AreAsLongAsTheConfigurationSays) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    const auto messages = [&](std::size_t elements, std::int64_t most,
                              std::int64_t most_gathered = 500'000'000) {
      Config config = zero_config(2);
      config.comm.bucket_elements = elements;
      config.zero.reduce_bucket_size = most;
      config.zero.allgather_bucket_size = most_gathered;
      Sharded sharded(comm, config);
      EngineReport report;
      for (std::int64_t t = 1; t <= 2; ++t) {
        sharded.backward({t, 0, false});
        report = sharded.engine.step();
      }
      return report.messages;
    };
    constexpr std::int64_t kMany = 500'000'000;
    const std::uint64_t by_rule = messages(0, kMany);
    const std::uint64_t of_1024 = messages(1024, kMany);
    EXPECT_GT(of_1024, by_rule);
    EXPECT_EQ(messages(1024, 4096), of_1024);
    EXPECT_EQ(messages(4096, 1024), of_1024);
    EXPECT_EQ(messages(0, 1024), of_1024);
    EXPECT_EQ(messages(0, kMany, 1024), of_1024);
    EXPECT_EQ(messages(0, 1024, 4096), of_1024);
  });
}

TEST(EngineLamb, CoefficientsAreThoseOfEveryParameterAtEveryStage) {
  comm::run_local_ranks(3, [](comm::Communicator& comm) {
    std::vector<std::vector<double>> of_stages;
    for (const int stage : {0, 1, 2})
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
        Config config = zero_config(stage, dtype);
        config.optimizer = optim::LambOptions{.learning_rate = 0.01};
        Sharded sharded(comm, config);
        const auto coeffs = [&] {
          return sharded.engine.optimizer().progress().lamb_coeffs;
        };
        EXPECT_EQ(coeffs(), std::vector<double>(8, 0));
        for (std::int64_t t = 1; t <= 2; ++t) {
          sharded.backward({t, 0, false});
          (void)sharded.engine.step();
        }
        if (dtype == DType::kFloat32) of_stages.push_back(coeffs());
        EXPECT_EQ(coeffs().size(), 8u);
        EXPECT_NE(coeffs()[2], 0);
        EXPECT_NE(coeffs()[2], 1);
      }
    EXPECT_EQ(of_stages[1], of_stages[0]);
    EXPECT_EQ(of_stages[2], of_stages[0]);
    Sharded adam(comm, zero_config(1));
    EXPECT_TRUE(adam.engine.optimizer().progress().lamb_coeffs.empty());
  });
}

}  // namespace
}  // namespace thinwire::engine::engine_zero_test
