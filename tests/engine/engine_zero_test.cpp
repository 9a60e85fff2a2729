// SPDX-License-Identifier: Apache-2.0
// ZeRO through an Engine: the bits of training without it, and calls that are
// refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "engine/by_hand.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace thinwire::engine::test::engine_zero_test {
namespace {

class EngineZero : public ::testing::TestWithParam<std::tuple<int, DType>> {};

INSTANTIATE_TEST_SUITE_P(All, EngineZero,
                         ::testing::Combine(::testing::Values(1, 3),
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
          config.optimizer = optimizer_case(optimizer);
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
      for (std::int64_t t = 1; t <= 2; ++t)
        report = sharded.step({t, 0, false});
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
        for (std::int64_t t = 1; t <= 2; ++t) sharded.step({t, 0, false});
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

// ---- what is refused

TEST(KeepsGradients, UnlessAnArrayOfThemIsWasted) {
  const auto keeps = [](int stage, DType dtype, std::int64_t backwards,
                        bool managed = true) {
    return keeps_gradients(zero_config(stage, dtype, backwards, managed), 2);
  };
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    EXPECT_TRUE(keeps(0, dtype, 1));
    EXPECT_TRUE(keeps(0, dtype, 2));
    EXPECT_TRUE(keeps(1, dtype, 1));
    EXPECT_FALSE(keeps(2, dtype, 1));
    EXPECT_FALSE(keeps(2, dtype, 2));
  }
  EXPECT_TRUE(keeps(1, DType::kFloat32, 2));
  EXPECT_FALSE(keeps(1, DType::kBFloat16, 2));
  EXPECT_FALSE(keeps(1, DType::kBFloat16, 1, /*managed=*/false));
  Config narrow = zero_config(1, DType::kBFloat16, 2);
  narrow.accumulation_dtype = DType::kBFloat16;
  EXPECT_TRUE(keeps_gradients(narrow, 2));
}

TEST(EngineZeroErrors, Item37UnusedParametersAreNamedOnAllRanks) {
  for (const int stage : {1, 2})
    for (const int world : {1, 3})
      comm::run_local_ranks(world, [&](comm::Communicator& comm) {
        Config config = zero_config(stage, DType::kBFloat16, 2);
        config.zero.ignore_unused_parameters = false;
        Sharded sharded(comm, config);
        // Once in a window is enough; "none" and "empty" have nothing to miss.
        sharded.backward({1, 0}, {0, 4, 6});
        sharded.engine.step();
        sharded.backward({1, 1}, {0, 4, 2});
        EXPECT_TRUE(sharded.engine.step().applied);
        const bool is_last = comm.rank() == world - 1;
        for (std::int64_t micro = 0; micro < 2; ++micro) {
          sharded.backward({2, micro}, is_last ? std::set<std::size_t>{5}
                                               : std::set<std::size_t>{});
          if (micro == 0) sharded.engine.step();
        }
        expect_error(
            kPrecondition,
            {"'block' had no gradient on rank " + std::to_string(world - 1),
             "zero.ignore_unused_parameters"},
            [&] { sharded.engine.step(); });
      });
}

TEST(EngineZeroErrors, WholeValuesWithoutZero) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    Sharded plain(comm, zero_config(0));
    expect_error(kPrecondition, {"full_gradient: only with ZeRO"},
                 [&] { (void)plain.engine.whole_values().gradient("wide"); });
    EXPECT_EQ(plain.engine.whole_values().state("wide", "exp_avg"),
              std::vector<float>(130 * 129));
    expect_error(kArgument, {"key", "'denominator'"}, [&] {
      (void)plain.engine.whole_values().state("wide", "denominator");
    });
    const std::vector<float> values(130 * 129);
    expect_error(kPrecondition, {"set_full_gradient: only with ZeRO"}, [&] {
      plain.engine.whole_values().set_gradient("wide", values);
    });
    expect_error(kPrecondition, {"set_full_state: only with ZeRO"}, [&] {
      plain.engine.whole_values().set_state("wide", "exp_avg", values);
    });
    expect_error(kPrecondition, {"zero: only with ZeRO"},
                 [&] { (void)plain.engine.zero(); });
    EXPECT_EQ(plain.engine.whole_values().parameter("block").size(), 1025u);
  });
}

TEST(EngineZeroConfig, CombinationsThatAreRefused) {
  const auto refuses = [](const Config& config,
                          std::initializer_list<std::string_view> parts) {
    expect_error(kArgument, parts, [&] { config.validate(2); });
  };
  for (const int stage : {1, 2}) {
    Config config = zero_config(stage);
    for (const char* low_bit :
         {"onebit_adam", "onebit_lamb", "zero_one_adam"}) {
      config.optimizer = optimizer_case(low_bit);
      refuses(config, {"zero_optimization.stage) must be 0 with", low_bit,
                       "thinwire.lean"});
    }
    config = zero_config(stage);
    config.zero.reduce_bucket_size = -1;
    refuses(config, {"reduce_bucket_size", ">= 0", "-1"});
    config = zero_config(stage);
    config.zero.offload_optimizer = config::OffloadDevice::kCpu;
    EXPECT_NO_THROW(config.validate(2));
    config.semantics = config::Semantics::kDeepSpeed;
    refuses(config, {"zero.offload_optimizer", "deepspeed", "cpu"});
    Config reference = zero_config(stage);
    reference.semantics = config::Semantics::kDeepSpeed;
    config = reference;
    config.optimizer = optimizer_case("lamb");
    refuses(config, {"adam with ZeRO", "lamb"});
    config = reference;
    std::get<optim::AdamOptions>(config.optimizer).epsilon_inside_sqrt = true;
    refuses(config, {"epsilon_inside_sqrt", "false", "deepspeed"});
    config = reference;
    config.precision.dtype = config.precision.master_dtype = DType::kFloat16;
    refuses(config, {"master_dtype", "float32 with deepspeed"});
  }
  for (const int stage : {-1, 3})
    refuses(zero_config(stage),
            {"zero.stage must be 0, 1 or 2", std::to_string(stage)});
  EXPECT_NO_THROW(zero_config(2).validate(2));
}

}  // namespace
}  // namespace thinwire::engine::test::engine_zero_test
