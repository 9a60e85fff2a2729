// SPDX-License-Identifier: Apache-2.0
// Items 27 and 57 of docs/conformance.md: a gradient that is not finite on one
// rank, in every phase of every optimizer.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "optim/states.h"
#include "precision/support.h"

namespace thinwire::precision::overflow_test {
namespace {

using optim::Phase;
using optim::StepReport;
using test::LowBitCase;
using test::Training;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class Overflow : public ::testing::TestWithParam<test::TrainingCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, Overflow,
    ::testing::Combine(::testing::Values(1, 2, 3, 4),
                       ::testing::Values(DType::kFloat16, DType::kBFloat16),
                       ::testing::ValuesIn(test::every_optimizer())),
    test::name_of_training);

// One run gets every step twice, the first time with an overflow; the other
// never sees one.
TEST_P(Overflow, Item27SkipsTheStepOnAllRanksInEveryPhase) {
  const auto& [world, dtype, tested] = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(world, [&, dtype = dtype,
                                &test_case = tested](auto& comm) {
    const auto options = test::with_static_scale(dtype);
    Training hit(comm, layout, test_case.make, options);
    Training spared(comm, layout, test_case.make, options);
    std::int64_t skipped = 0;
    for (std::int64_t t = 1; t <= test_case.steps; ++t) {
      SCOPED_TRACE(t);
      const auto grads = test::grid_gradient(layout, t, comm.rank());
      // In bf16 local steps stay local: the test below.
      if (hit.optimizer->progress().phase != Phase::kLocal ||
          dtype == DType::kFloat16) {
        auto bad = grads;
        if (comm.rank() == static_cast<int>(t) % comm.size())
          bad[static_cast<std::size_t>(t * 37)] =
              t % 2 == 0 ? -kNan : kInfinity;
        const StateDict state = copy_of(hit.optimizer->state());
        const Buffer params = test::copied(hit.params.view());
        const StepReport report = hit.step(bad);
        EXPECT_FALSE(report.applied);
        EXPECT_EQ(hit.optimizer->progress().skipped, ++skipped);
        EXPECT_EQ(hit.optimizer->progress().steps, t - 1);
        EXPECT_TRUE(test::same_bytes(hit.params.view(), params.view()));
        EXPECT_TRUE(test::same_state(copy_of(hit.optimizer->state()), state,
                                     {"skipped_steps", "loss_scale_steps"}));
      }
      const StepReport report = hit.step(grads);
      const StepReport same = spared.step(grads);
      EXPECT_TRUE(report.applied);
      EXPECT_EQ(report.phase, same.phase);
      EXPECT_EQ(report.grad_norm, same.grad_norm);
      EXPECT_EQ(hit.optimizer->progress().steps, t);
      ASSERT_TRUE(test::same_bytes(hit.params.view(), spared.params.view()));
      ASSERT_TRUE(test::same_state(copy_of(hit.optimizer->state()),
                                   copy_of(spared.optimizer->state()),
                                   {"skipped_steps", "loss_scale_steps"}));
    }
    EXPECT_EQ(spared.optimizer->progress().skipped, 0);
  });
}

// A local step of 0/1 Adam exchanges nothing in bf16: the rank concerned leaves
// its part out, and the next sync says so.
TEST(MixedPrecision, Item57ABfloat16LocalStepIsLeftOutByOneRank) {
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
