// SPDX-License-Identifier: Apache-2.0
// What the reference's low-bit optimizers do otherwise than Thinwire's; their
// arithmetic is held by the recordings (tests/golden).
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "deepspeed/compressed_all_reduce.h"
#include "optim/support.h"
#include "support/errors.h"
#include "thinwire/comm/local.h"
#include "thinwire/deepspeed/optimizers.h"

namespace thinwire::deepspeed::low_bit_test {
namespace {

using optim::Phase;

template <class Options>
void refused(const Options& options, std::string_view name,
             std::string_view value) {
  const auto layout = ParameterLayout::of({{"p", {3}}});
  test::expect_invalid({std::string(name), std::string(value)},
                       [&] { validate(options, layout); });
}

TEST(DeepSpeedOptions, OptionsThatDeepSpeedLacksAreRefusedByName) {
  refused(optim::OnebitAdamOptions{.freeze = {.step = optim::kAutoFreeze}},
          "semantics", "deepspeed");
  refused(optim::OnebitLambOptions{.freeze = {.step = optim::kAutoFreeze}},
          "semantics", "deepspeed");
  refused(optim::OnebitAdamOptions{.compression = {.residual_dtype =
                                                       DType::kBFloat16}},
          "residual_dtype", "bfloat16");
  refused(optim::OnebitLambOptions{.compression = {.residual_dtype =
                                                       DType::kBFloat16}},
          "residual_dtype", "bfloat16");
  refused(optim::ZeroOneAdamOptions{.compression = {.residual_dtype =
                                                        DType::kBFloat16}},
          "residual_dtype", "bfloat16");
  refused(optim::ZeroOneAdamOptions{.compression = {.exchange = {.verify_every =
                                                                     2}}},
          "verify_every", "got 2");
  refused(optim::ZeroOneAdamOptions{.var_freeze_step = -1}, "var_freeze_step",
          "-1");
  refused(optim::OnebitAdamOptions{.freeze = {.step = -2}}, "freeze_step",
          "-2");
  refused(optim::OnebitAdamOptions{.beta1 = 1}, "beta1", "got 1");
}

TEST(DeepSpeedOptions, TheInitializationStepCounts) {
  const auto layout = ParameterLayout::of({{"p", {3}}});
  EXPECT_NO_THROW(
      validate(optim::OnebitAdamOptions{.freeze = {.step = 0}}, layout));
  EXPECT_NO_THROW(
      validate(optim::OnebitLambOptions{.freeze = {.step = 0}}, layout));
  EXPECT_NO_THROW(
      validate(optim::ZeroOneAdamOptions{.var_freeze_step = 0}, layout));
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout, {.freeze = {.step = 3}});
    std::vector<float> params{1, 2, 3};
    std::vector<float> grads{1, -1, 2};
    (void)optimizer.step(params, grads);
    EXPECT_EQ(optimizer.progress().steps, 1);
    EXPECT_EQ(params, (std::vector<float>{1, 2, 3}));
  });
}

// Optimizers of the two kinds do not take each other's states.
TEST(DeepSpeedState, DiffersFromThatOfTheOtherSemantics) {
  const auto layout = test::small_layout();
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    OnebitAdam reference(comm, layout, {.freeze = {.step = 1}});
    optim::OnebitAdam own(comm, layout, {.freeze = {.step = 1}});
    test::expect_error(
        ErrorCode::kCorruptCheckpoint, {"onebit_adam", "deepspeed"},
        [&] { reference.load_state_dict(copy_of(own.state())); });
    test::expect_error(
        ErrorCode::kCorruptCheckpoint, {"onebit_adam", "deepspeed"},
        [&] { own.load_state_dict(copy_of(reference.state())); });
  });
}

TEST(DeepSpeedState, LosesResiduals) {
  const auto layout = test::small_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const optim::OnebitAdamOptions options{.freeze = {.step = 2}};
    OnebitAdam one(comm, layout, options);
    std::vector<float> params = test::normal(layout.size(), 3);
    const auto step = [&](OnebitAdam& optimizer, std::int64_t t) {
      (void)test::step_of(optimizer, params, t, comm.rank());
    };
    const auto largest_residual = [](const OnebitAdam& optimizer) {
      float most = 0;
      const StateDict state = copy_of(optimizer.state());
      for (const float e : state.array("worker_error").as<float>())
        most = std::max(most, std::abs(e));
      return most;
    };
    for (std::int64_t t = 1; t <= 4; ++t) step(one, t);
    EXPECT_GT(largest_residual(one), 0);
    OnebitAdam two(comm, layout, options);
    step(two, 1);  // has made its exchange
    two.load_state_dict(copy_of(one.state()));
    EXPECT_EQ(two.progress().phase, Phase::kCompressed);
    EXPECT_EQ(two.progress().steps, 4);
    EXPECT_EQ(largest_residual(two), 0);
  });
}

// Only the same rank of as many can use a state.
TEST(DeepSpeedState, BelongsToOneRank) {
  const auto layout = test::small_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    std::vector<std::unique_ptr<Optimizer>> optimizers;
    optimizers.push_back(std::make_unique<OnebitAdam>(
        comm, layout, optim::OnebitAdamOptions{.freeze = {.step = 2}}));
    optimizers.push_back(std::make_unique<OnebitLamb>(
        comm, layout, optim::OnebitLambOptions{.freeze = {.step = 2}}));
    optimizers.push_back(std::make_unique<ZeroOneAdam>(
        comm, layout, optim::ZeroOneAdamOptions{.var_freeze_step = 2}));
    for (const auto& optimizer : optimizers) {
      std::vector<float> params = test::normal(layout.size(), 3);
      for (std::int64_t t = 1; t <= 4; ++t)
        (void)test::step_of(*optimizer, params, t, comm.rank());
      const optim::State state = optimizer->state();
      EXPECT_NE(state.find("worker_error"), nullptr);
      for (const optim::StateArray& array : state.arrays) {
        EXPECT_EQ(array.axis, optim::Axis::kFree) << array.name;
        EXPECT_EQ(array.sharing, optim::Sharing::kOwn) << array.name;
      }
      EXPECT_EQ(state.common.integer("step"), 4);
    }
  });
}

// A multiple of W lcm(8, W); the server's chunks are a W-th of it.
TEST(DeepSpeedCompressedAllReduce, PadsEachUnitAsDeepSpeedDoes) {
  EXPECT_EQ(padded_size(0, 2), 0u);
  EXPECT_EQ(padded_size(1, 1), 8u);
  EXPECT_EQ(padded_size(17, 2), 32u);
  EXPECT_EQ(padded_size(73, 3), 144u);
  EXPECT_EQ(padded_size(64, 8), 64u);
  const std::vector<Range> units = {{0, 17}, {17, 0}, {17, 3}};
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    const CompressedAllReduce all(comm, units);
    EXPECT_EQ(all.worker_error().size(), 32u + 16u);
    EXPECT_EQ(all.server_error().size(), 16u + 8u);
  });
}

}  // namespace
}  // namespace thinwire::deepspeed::low_bit_test
