// SPDX-License-Identifier: Apache-2.0
// Items 27, 44 and 57 of docs/conformance.json: a gradient that is not finite
// on one rank, in every phase of every optimizer. Where the loss scale cannot
// fall, it is an error on every rank that says where it was; training can go
// on.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <string>

#include "optim/states.h"
#include "precision/support.h"
#include "support/errors.h"

namespace thinwire::precision::overflow_test {
namespace {

using optim::Phase;
using optim::StepReport;
using test::LowBitCase;
using test::Training;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const LossScalerOptions kAtMinimum{
    .initial_scale = 1, .window = 1'000'000, .hysteresis = 1};

// One run gets every step twice, the first time with an overflow; the other
// never sees one.
void expect_spared(comm::Communicator& comm, const LowBitCase& tested,
                   const MixedPrecisionOptions& options) {
  const bool stops = options.loss_scale.dynamic;  // and at its minimum
  std::set<std::string> counts = {"skipped_steps", "last_loss_scale"};
  if (!stops) counts.insert("loss_scale_steps");
  const ParameterLayout layout = test::grouped_layout();
  Training hit(comm, layout, tested.make, options);
  Training spared(comm, layout, tested.make, options);
  std::int64_t skipped = 0;
  for (std::int64_t t = 1; t <= tested.steps; ++t) {
    SCOPED_TRACE(t);
    const auto grads = test::grid_gradient(layout, t, comm.rank());
    // In bf16 local steps stay local: the test below.
    if (hit.optimizer->progress().phase != Phase::kLocal ||
        options.dtype == DType::kFloat16) {
      // The guilty rank has two of them, and those after it have others: the
      // first one of the lowest rank counts.
      const int guilty = static_cast<int>(t) % comm.size();
      const std::size_t first =
          layout.size() - static_cast<std::size_t>(t) * 31;
      auto bad = grads;
      if (comm.rank() == guilty)
        bad[first] = bad.back() = t % 2 == 0 ? -kNan : kInfinity;
      if (comm.rank() > guilty) bad[0] = kNan;
      const StateDict state = copy_of(hit.optimizer->state());
      const Buffer params = test::copied(hit.params.view());
      if (stops) {
        EXPECT_FALSE(hit.optimizer->early()->reduces());
        test::expect_error(
            ErrorCode::kNonFinite,
            {"minimum of 1",
             fmt::format("'{}'", layout.parameter_at(first).name),
             fmt::format("on rank {}", guilty),
             fmt::format("last good step was {}", t - 1)},
            [&] { hit.step(bad); });
      } else {
        EXPECT_FALSE(hit.step(bad).applied);
        EXPECT_EQ(hit.optimizer->progress().skipped, ++skipped);
      }
      EXPECT_EQ(hit.optimizer->progress().steps, t - 1);
      EXPECT_TRUE(test::same_bytes(hit.params.view(), params.view()));
      EXPECT_TRUE(
          test::same_state(copy_of(hit.optimizer->state()), state, counts));
    }
    const StepReport report = hit.step(grads);
    const StepReport same = spared.step(grads);
    EXPECT_TRUE(report.applied);
    EXPECT_EQ(report.phase, same.phase);
    EXPECT_EQ(report.grad_norm, same.grad_norm);
    EXPECT_EQ(hit.optimizer->progress().steps, t);
    ASSERT_TRUE(test::same_bytes(hit.params.view(), spared.params.view()));
    ASSERT_TRUE(test::same_state(copy_of(hit.optimizer->state()),
                                 copy_of(spared.optimizer->state()), counts));
  }
  EXPECT_EQ(spared.optimizer->progress().skipped, 0);
}

class Overflow : public ::testing::TestWithParam<test::TrainingCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, Overflow,
    ::testing::Combine(::testing::Values(1, 2, 3, 4),
                       ::testing::Values(DType::kFloat16, DType::kBFloat16),
                       ::testing::ValuesIn(test::every_optimizer())),
    test::name_of_training);

TEST_P(Overflow, Item27SkipsTheStepOnAllRanksInEveryPhase) {
  const auto& [world, dtype, tested] = GetParam();
  comm::run_local_ranks(
      world, [&, dtype = dtype, &test_case = tested](auto& comm) {
        expect_spared(comm, test_case, test::with_static_scale(dtype));
      });
}

class MinimumScale
    : public ::testing::TestWithParam<std::tuple<int, LowBitCase>> {};
INSTANTIATE_TEST_SUITE_P(
    All, MinimumScale,
    ::testing::Combine(::testing::Values(1, 2, 3),
                       ::testing::ValuesIn(test::every_optimizer())),
    test::kNameAndWorld);

TEST_P(MinimumScale, StopsOnEveryRankAndSaysWhere) {
  const auto& [world, tested] = GetParam();
  comm::run_local_ranks(world, [&, &test_case = tested](auto& comm) {
    expect_spared(comm, test_case, {.loss_scale = kAtMinimum});
  });
}

TEST(MinimumScale, IsHeldIfThatIsThePolicy) {
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

// A local step of 0/1 Adam exchanges nothing in bf16: the rank concerned leaves
// its part out, and the next sync says so.
TEST(MixedPrecision, Item57ABfloat16LocalStepIsSkippedByOneRank) {
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    Training run(comm, layout, test::zero_one_adam(test::short_zero_one_adam()),
                 test::with_static_scale(DType::kBFloat16));
    for (std::int64_t t = 1; t <= 20; ++t) {
      auto grads = test::grid_gradient(layout, t, comm.rank());
      const bool leaves_out = t == 18 && comm.rank() == 1;
      if (leaves_out) grads[7] = kNan;
      if (t == 18) {
        EXPECT_EQ(run.optimizer->progress().phase, Phase::kLocal);
      }
      const Buffer before = test::copied(run.params.view());
      const StepReport report = run.step(grads);
      EXPECT_TRUE(report.applied);
      EXPECT_EQ(report.nonfinite_rank, t == 20 ? 1 : -1) << t;
      EXPECT_EQ(bool{test::same_bytes(run.params.view(), before.view())},
                leaves_out)
          << t;
      for (const BFloat16 p : run.params.as<BFloat16>())
        ASSERT_TRUE(std::isfinite(to_float(p)));
    }
    EXPECT_EQ(run.optimizer->progress().skipped, 0);
  });
}

}  // namespace
}  // namespace thinwire::precision::overflow_test
