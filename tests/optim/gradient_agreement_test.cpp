// SPDX-License-Identifier: Apache-2.0
#include "optim/gradient_agreement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "optim/low_bit/cases.h"
#include "optim/support.h"
#include "support/errors.h"

namespace thinwire::optim::gradient_agreement_test {
namespace {

TEST(ClipFactor, ShortensOnlyLongGradients) {
  EXPECT_EQ(clip_factor(4, 1), 0.25);
  EXPECT_EQ(clip_factor(1, 1), 1);
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(100, 0), 1);  // 0: never
  EXPECT_EQ(clip_factor(0, 1), 1);
}

Agreement on_squares(const std::vector<double>& squares) {
  std::vector<GradientSummary> ranks;
  for (const double own : squares) ranks.push_back({.squares = own});
  return agreement_on(ranks);
}

TEST(GradientAgreement, NamesTheLowestRankThatIsNotFinite) {
  EXPECT_EQ(on_squares({1, 2, 3}).nonfinite_rank, -1);
  EXPECT_EQ(on_squares({1, INFINITY, NAN}).nonfinite_rank, 1);
  EXPECT_EQ(on_squares({NAN, 1}).nonfinite_rank, 0);
  EXPECT_EQ(on_squares({4, 9, 16, 7}).rms_norm, 3);  // sqrt(36 / 4)
}

TEST(GradientAgreement, SaysWhetherAllNormsAreEqual) {
  EXPECT_TRUE(on_squares({3, 3, 3}).equal_norms);
  EXPECT_FALSE(on_squares({3, 3, std::nextafter(3, 4)}).equal_norms);
  EXPECT_FALSE(on_squares({2, 3, 3}).equal_norms);
  EXPECT_FALSE(on_squares({0, 0}).equal_norms);
  EXPECT_FALSE(on_squares({INFINITY, INFINITY}).equal_norms);
  EXPECT_FALSE(on_squares({NAN, NAN}).equal_norms);
  EXPECT_FALSE(on_squares({3}).equal_norms);  // there is nobody else
}

TEST(GradientAgreement, FindsSkippedLocalStepsAndNewGradients) {
  const std::vector<GradientSummary> quiet(3);
  EXPECT_EQ(agreement_on(quiet).left_out_rank, -1);
  EXPECT_FALSE(agreement_on(quiet).any_late);
  std::vector<GradientSummary> ranks(3);
  ranks[1].left_out = 1;
  ranks[2].left_out = 1;
  ranks[2].late = 1;
  EXPECT_EQ(agreement_on(ranks).left_out_rank, 1);
  EXPECT_TRUE(agreement_on(ranks).any_late);
}

TEST(GradientAgreement, RefusesStepsOfDifferentOptimizers) {
  std::vector<GradientSummary> ranks(3);
  ranks[2].optimizer = 7;
  test::expect_error(ErrorCode::kFailedPrecondition,
                     {"ranks 0 and 2 are in a step of different optimizers"},
                     [&] { (void)agreement_on(ranks); });
}

// Signal 1, noise 0.5 of the step's samples: rho^2 = 1.5 / (1 + ranks / 2).
TEST(CalibratedNorm, FollowsTheNumberOfRanks) {
  const auto measured = [](double ranks) {
    CalibratedNorm norm;
    norm.measure(std::sqrt(1.5), std::sqrt(1 + ranks / 2));
    return norm;
  };
  for (const int from : {2, 3, 8})
    for (const int to : {2, 3, 4, 8}) {
      CalibratedNorm norm = measured(from);
      norm.rescale(from, to);
      EXPECT_NEAR(norm.estimate(1), measured(to).estimate(1), 1e-12);
    }
  CalibratedNorm alone = measured(4);
  alone.rescale(4, 1);
  EXPECT_EQ(alone.estimate(1), 1);
  CalibratedNorm noise;
  noise.measure(0.1, 1);  // less than any number of ranks explains
  noise.rescale(4, 9);
  EXPECT_NEAR(noise.estimate(1), 1.0 / 3, 1e-12);
}

// ---- ExchangeOptions::lagged_clipping: what a compressed step is clipped by

double saved(const LaggedNorm& norm) {
  StateDict state;
  norm.save(state);
  return state.real("clip_reference");
}

TEST(LaggedNorm, IgnoresNormsThatAreNotFinite) {
  LaggedNorm norm;
  norm.begin(1);
  EXPECT_EQ(norm.take(INFINITY), INFINITY);
  EXPECT_EQ(saved(norm), 2);
  EXPECT_EQ(norm.take(NAN), 2);
  EXPECT_EQ(saved(norm), 4);
}

TEST(LaggedNorm, MayBeMissingInAState) {
  LaggedNorm norm;
  norm.begin(5);
  StateDict state;
  norm.save(state);
  LaggedNorm loaded;
  loaded.load(state);
  EXPECT_EQ(saved(loaded), 5);
  LaggedNorm without;
  without.load(StateDict());
  EXPECT_EQ(saved(without), 0);
}

TEST(LaggedNorm, KeepsItsEstimateOnOtherRanks) {
  CalibratedNorm four;
  four.measure(std::sqrt(1.5), std::sqrt(3));
  CalibratedNorm two = four;
  two.rescale(4, 2);
  LaggedNorm norm;
  norm.begin(3);
  norm.rescale(four, two);
  EXPECT_NE(saved(norm), 3);
  EXPECT_DOUBLE_EQ(two.estimate(saved(norm)), four.estimate(3));
}

// A rank alone: its norm is the gradient's, and rho is 1.
TEST(LaggedClipping, ReportsItsNormAndItsClipFactor) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    OnebitAdam optimizer(
        comm, ParameterLayout::of({{"p", {1}}}),
        {.freeze = {.step = 1},
         .compression = {
             .exchange = {.max_grad_norm = 1, .lagged_clipping = true}}});
    std::vector<float> params{0};
    const auto step = [&](float norm) {
      std::vector<float> grads{norm};
      return optimizer.step(params, grads);
    };
    step(4);
    const StepReport next = step(8);
    EXPECT_EQ(next.grad_norm, 8);
    EXPECT_TRUE(next.grad_norm_is_estimate);
    EXPECT_EQ(next.clip_factor, 0.25);
    const StepReport spike = step(100);
    EXPECT_EQ(spike.grad_norm, 100);
    EXPECT_EQ(spike.clip_factor, 0.01);
    EXPECT_EQ(step(8).clip_factor, 1.0 / 16);
    EXPECT_EQ(step(8).clip_factor, 1.0 / 8);
  });
}

// ---- StepReport::gradients_equal; that it costs no byte:
// low_bit/bytes_test.cpp

using test::MakeOptimizer;
using Floats = std::vector<float>;

const ParameterLayout& layout() {
  static const ParameterLayout all = test::grouped_layout();
  return all;
}

Floats same(std::int64_t t) { return test::gradient(layout().size(), t, 0); }

// Returns the reports of a new optimizer's steps 1, 2, ... on each rank.
std::vector<bool> reported(int world, const MakeOptimizer& make,
                           bool finds_nonfinite = false) {
  constexpr std::int64_t kSteps = 4;
  std::vector<std::vector<bool>> of_ranks(static_cast<std::size_t>(world));
  comm::run_local_ranks(world, [&](comm::Communicator& comm) {
    const auto optimizer = make(comm, layout());
    Floats params = test::normal(layout().size(), 3);
    for (std::int64_t t = 1; t <= kSteps; ++t) {
      Floats grads = same(t);
      const StepReport report =
          optimizer->step({.params = params,
                           .grads = grads,
                           .finds_nonfinite = finds_nonfinite});
      of_ranks[static_cast<std::size_t>(comm.rank())].push_back(
          report.gradients_equal);
    }
  });
  for (const auto& own : of_ranks) EXPECT_EQ(own, of_ranks[0]);
  return of_ranks[0];
}

const std::vector<bool> kNever(4, false);
const std::vector<bool> kTwice = {true, true, false, false};

class EqualGradients : public ::testing::TestWithParam<test::LowBitCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, EqualGradients,
    ::testing::Values(
        test::LowBitCase{"onebit_adam",
                         test::onebit_adam({.freeze = {.step = 9}})},
        test::LowBitCase{"compressed_at_once",
                         test::onebit_adam({.freeze = {.step = 1}})},
        test::LowBitCase{"onebit_lamb",
                         test::onebit_lamb(test::short_onebit_lamb())},
        test::LowBitCase{"zero_one_adam",
                         test::zero_one_adam(test::short_zero_one_adam())}),
    [](const auto& tested) { return tested.param.name; });

TEST_P(EqualGradients, AreReportedInTheFirstTwoSteps) {
  for (const int world : {2, 3, 4})
    EXPECT_EQ(reported(world, GetParam().make), kTwice);
  EXPECT_EQ(reported(1, GetParam().make), kNever);
}

TEST_P(EqualGradients, AreReportedAgainAfterALoad) {
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    Floats params = test::normal(layout().size(), 3);
    auto optimizer = GetParam().make(comm, layout());
    const auto step = [&](std::int64_t t) {
      Floats grads = same(t);
      return optimizer->step(params, grads).gradients_equal;
    };
    for (std::int64_t t = 1; t <= 4; ++t) EXPECT_EQ(step(t), t <= 2) << t;
    const StateDict state = copy_of(optimizer->state());
    optimizer = GetParam().make(comm, layout());
    optimizer->load_state_dict(state);
    EXPECT_TRUE(step(5));
  });
}

// Exact data parallelism has the ranks' norms only where it is asked for the
// rank of a gradient that is not finite.
TEST(EqualGradientsOfDataParallel, AreReportedIfNormsAreExchanged) {
  EXPECT_EQ(reported(3, test::exact_adam({}), true), kTwice);
  EXPECT_EQ(reported(3, test::exact_adam({}), false), kNever);
}

}  // namespace
}  // namespace thinwire::optim::gradient_agreement_test
