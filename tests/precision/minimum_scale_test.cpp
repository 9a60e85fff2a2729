// SPDX-License-Identifier: Apache-2.0
// An overflow where the loss scale cannot fall: an error on every rank that
// says where it was, after which training can go on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "optim/states.h"
#include "precision/support.h"
#include "support/errors.h"

namespace thinwire::precision::minimum_scale_test {
namespace {

using optim::Phase;
using test::LowBitCase;
using test::Training;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

const LossScalerOptions kAtMinimum{
    .initial_scale = 1, .window = 1'000'000, .hysteresis = 1};

class MinimumScale
    : public ::testing::TestWithParam<std::tuple<int, LowBitCase>> {};
INSTANTIATE_TEST_SUITE_P(
    All, MinimumScale,
    ::testing::Combine(::testing::Values(1, 2, 3),
                       ::testing::ValuesIn(test::every_optimizer())),
    test::kNameAndWorld);

TEST_P(MinimumScale, StopsOnEveryRankSayingWhere) {
  const auto& [world, tested] = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(world, [&, &test_case = tested](auto& comm) {
    Training hit(comm, layout, test_case.make, {.loss_scale = kAtMinimum});
    Training spared(comm, layout, test_case.make, {.loss_scale = kAtMinimum});
    for (std::int64_t t = 1; t <= test_case.steps; ++t) {
      SCOPED_TRACE(t);
      const auto grads = test::grid_gradient(layout, t, comm.rank());
      // The guilty rank has two of them; it is the first that counts.
      const int guilty = static_cast<int>(t) % comm.size();
      auto bad = grads;
      if (comm.rank() == guilty) {
        bad[layout.parameter("w33").offset + 32] = kInfinity;
        bad[layout.parameter("last").offset] = kInfinity;
      }
      const StateDict state = copy_of(hit.optimizer->state());
      const Buffer params = test::copied(hit.params.view());
      EXPECT_FALSE(hit.optimizer->early()->reduces());
      test::expect_error(
          ErrorCode::kNonFinite,
          {"minimum of 1", "'w33'", fmt::format("on rank {}", guilty),
           fmt::format("last good step was {}", t - 1)},
          [&] { hit.step(bad); });
      EXPECT_TRUE(test::same_state(copy_of(hit.optimizer->state()), state,
                                   {"skipped_steps"}));
      EXPECT_TRUE(test::same_bytes(hit.params.view(), params.view()));

      EXPECT_TRUE(hit.step(grads).applied);
      EXPECT_TRUE(spared.step(grads).applied);
      ASSERT_TRUE(test::same_bytes(hit.params.view(), spared.params.view()));
      ASSERT_TRUE(test::same_state(copy_of(hit.optimizer->state()),
                                   copy_of(spared.optimizer->state()),
                                   {"skipped_steps"}));
    }
  });
}

// Several ranks overflow, each in another parameter: the lowest one is named.
TEST_P(MinimumScale, NamesTheLowestRankThatOverflowed) {
  const auto& [world, tested] = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(world, [&, &test_case = tested](auto& comm) {
    Training run(comm, layout, test_case.make, {.loss_scale = kAtMinimum});
    const int lowest = comm.size() > 1 ? 1 : 0;
    for (std::int64_t t = 1; t <= test_case.steps; ++t) {
      const auto grads = test::grid_gradient(layout, t, comm.rank());
      auto bad = grads;
      if (comm.rank() == lowest) bad[layout.parameter("seven").offset] = NAN;
      if (comm.rank() > lowest) bad[0] = NAN;
      test::expect_error(ErrorCode::kNonFinite,
                         {"'seven'", fmt::format("on rank {}", lowest)},
                         [&] { run.step(bad); });
      EXPECT_TRUE(run.step(grads).applied);
    }
  });
}

TEST(MinimumScale, IsHeldWhereThatIsThePolicy) {
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    LossScalerOptions holds = kAtMinimum;
    holds.at_minimum = AtMinimum::kHold;
    Training run(comm, layout, test::exact_adam({}), {.loss_scale = holds});
    auto grads = test::grid_gradient(layout, 1, comm.rank());
    if (comm.rank() == 1) grads[4] = kInfinity;
    for (int i = 1; i <= 3; ++i) {
      EXPECT_FALSE(run.step(grads).applied);
      EXPECT_EQ(run.optimizer->loss_scale(), 1);
      EXPECT_EQ(run.optimizer->progress().skipped, i);
    }
  });
}

// fp32 gradients of this size are finite on each rank, but not their sum.
TEST(MinimumScale, SaysThatOnlyTheSumOverflowed) {
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    for (const auto& tested : test::every_optimizer()) {
      Training run(comm, layout, tested.make, {.loss_scale = kAtMinimum});
      run.grad_dtype = DType::kFloat32;
      auto grads = test::grid_gradient(layout, 1, comm.rank());
      grads[3] = std::numeric_limits<float>::max();
      test::expect_error(ErrorCode::kNonFinite,
                         {"in the sum over all ranks", "last good step was 0"},
                         [&] { run.step(grads); });
    }
  });
}

}  // namespace
}  // namespace thinwire::precision::minimum_scale_test
