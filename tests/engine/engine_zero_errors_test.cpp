// SPDX-License-Identifier: Apache-2.0
// Calls that an Engine with ZeRO refuses, and that it continues afterwards.
#include <gtest/gtest.h>

#include "engine/by_hand.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace thinwire::engine::engine_zero_errors_test {

using config::Config;

namespace {

using test::ByHand;
using test::floats;
using test::Sharded;
using test::zero_config;
using thinwire::test::expect_error;

constexpr ErrorCode kPrecondition = ErrorCode::kFailedPrecondition;
constexpr ErrorCode kArgument = ErrorCode::kInvalidArgument;

TEST(KeepsGradients, WhereAnArrayOfThemIsNoWaste) {
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

TEST(EngineZeroErrors, GradientsHaveAnArrayOrNone) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    const ParameterLayout layout = test::model_layout();
    std::vector<float> params(layout.size());
    std::vector<float> grads(layout.size());
    expect_error(
        kArgument,
        {"grads must be empty", "gradient_ready", "got 38360 elements"}, [&] {
          const Engine engine(comm, layout, zero_config(2), params, grads);
        });
    expect_error(kArgument, {"grads must be float32 of 38360", "of 0"}, [&] {
      const Engine engine(comm, layout, zero_config(1), params, View{});
    });
  });
}

// Means would be added to gradients of one rank.
TEST(EngineZeroErrors, NoBackwardAfterAGradientWasRead) {
  for (const int stage : {1, 2})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      const Config config =
          zero_config(stage, DType::kFloat32, 1, /*managed=*/false);
      ByHand hand(comm, config, {});
      Sharded sharded(comm, config);
      for (std::int64_t t = 1; t <= 3; ++t) {
        hand.step(t, 1, 1, false);
        sharded.backward({t, 0});
        EXPECT_EQ(sharded.engine.whole_values().gradient("long").size(),
                  20000u);
        EXPECT_EQ(sharded.engine.whole_values().gradient("scalar").size(), 1u);
        expect_error(kPrecondition, {"step()"},
                     [&] { sharded.engine.begin_backward(); });
        EXPECT_TRUE(sharded.engine.step().applied);
        ASSERT_EQ(floats(sharded.params.view()), floats(hand.params.view()))
            << "stage " << stage << ", step " << t;
      }
    });
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
  const auto refuses = [](const Config& config, ErrorCode code,
                          std::initializer_list<std::string_view> parts) {
    expect_error(code, parts, [&] { config.validate(2); });
  };
  for (const int stage : {1, 2}) {
    for (const char* low_bit :
         {"onebit_adam", "onebit_lamb", "zero_one_adam"}) {
      Config config = zero_config(stage);
      config.optimizer = test::optimizer_case(low_bit);
      refuses(config, kArgument,
              {"zero_optimization.stage) must be 0 with", low_bit,
               "thinwire.lean"});
    }
    Config config = zero_config(stage);
    config.zero.offload_optimizer = config::OffloadDevice::kCpu;
    EXPECT_NO_THROW(config.validate(2));
    config.semantics = config::Semantics::kDeepSpeed;
    refuses(config, kArgument, {"zero.offload_optimizer", "deepspeed", "cpu"});
    config = zero_config(stage);
    config.semantics = config::Semantics::kDeepSpeed;
    config.optimizer = test::optimizer_case("lamb");
    refuses(config, kArgument, {"adam with ZeRO", "lamb"});
    config = zero_config(stage);
    config.semantics = config::Semantics::kDeepSpeed;
    std::get<optim::AdamOptions>(config.optimizer).epsilon_inside_sqrt = true;
    refuses(config, kArgument, {"epsilon_inside_sqrt", "false", "deepspeed"});
    config = zero_config(stage, DType::kFloat16);
    config.semantics = config::Semantics::kDeepSpeed;
    config.precision.master_dtype = DType::kFloat16;
    refuses(config, kArgument, {"master_dtype", "float32 with deepspeed"});
    config = zero_config(stage);
    config.zero.reduce_bucket_size = -1;
    refuses(config, kArgument, {"reduce_bucket_size", ">= 0", "-1"});
  }
  for (const int stage : {-1, 3})
    refuses(zero_config(stage), kArgument,
            {"zero.stage must be 0, 1 or 2", std::to_string(stage)});
  EXPECT_NO_THROW(zero_config(2).validate(2));
}

}  // namespace
}  // namespace thinwire::engine::engine_zero_errors_test
