// SPDX-License-Identifier: Apache-2.0
// ExchangeOptions::lagged_clipping: what a compressed step is clipped by.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <vector>

#include "optim/gradient_agreement.h"
#include "optim/low_bit/cases.h"
#include "optim/naive/drive.h"
#include "optim/naive/lamb.h"
#include "optim/naive/onebit_adam.h"
#include "optim/naive/zero_one_adam.h"
#include "support/errors.h"

namespace thinwire::optim::lagged_clipping_test {
namespace {

TEST(LaggedNorm, IsThatOfTheStepBeforeUnlessTheNormHasDoubled) {
  LaggedNorm norm;
  norm.begin(3);
  EXPECT_EQ(norm.take(4), 3);
  EXPECT_EQ(norm.take(8), 4);       // twice is no spike yet
  EXPECT_EQ(norm.take(100), 100);   // a spike counts at once, ...
  EXPECT_EQ(norm.reference(), 16);  // ... and little afterwards
  EXPECT_EQ(norm.take(5), 16);
  EXPECT_EQ(norm.take(5), 5);
}

TEST(LaggedNorm, BeginsWithTheFirstNormThatIsNotZero) {
  LaggedNorm norm;
  EXPECT_EQ(norm.take(3), 3);
  EXPECT_EQ(norm.reference(), 3);
  EXPECT_EQ(norm.take(0), 3);
  EXPECT_EQ(norm.take(7), 7);
  EXPECT_EQ(norm.reference(), 7);
}

TEST(LaggedNorm, OutlivesNormsThatAreNotFinite) {
  LaggedNorm norm;
  norm.begin(1);
  EXPECT_EQ(norm.take(INFINITY), INFINITY);
  EXPECT_EQ(norm.reference(), 2);
  EXPECT_EQ(norm.take(NAN), 2);
  EXPECT_EQ(norm.reference(), 4);
}

TEST(LaggedNorm, IsStateThatMayBeMissing) {
  LaggedNorm norm;
  norm.begin(5);
  StateDict state;
  norm.save(state);
  LaggedNorm loaded;
  loaded.load(state);
  EXPECT_EQ(loaded.reference(), 5);
  LaggedNorm without;
  without.load(StateDict());
  EXPECT_EQ(without.reference(), 0);
}

TEST(LaggedNorm, KeepsItsEstimateOnOtherRanks) {
  CalibratedNorm four;
  four.measure(std::sqrt(1.5), std::sqrt(3));
  CalibratedNorm two = four;
  two.rescale(4, 2);
  LaggedNorm norm;
  norm.begin(3);
  norm.rescale(four, two);
  EXPECT_NE(norm.reference(), 3);
  EXPECT_DOUBLE_EQ(two.estimate(norm.reference()), four.estimate(3));
}

// Every seventh step is 30 times too long, and one after it three times.
std::vector<float> spiked(const ParameterLayout& layout, std::int64_t t,
                          int rank) {
  std::vector<float> values = test::gradient(layout.size(), t, rank);
  const float factor = t % 7 == 0 ? 30.0f : (t % 7 == 1 ? 3.0f : 1.0f);
  for (float& value : values) value *= factor;
  return values;
}

// One rank has no finite gradient in two steps, one of them right after a
// spike.
std::vector<float> skipped(const ParameterLayout& layout, std::int64_t t,
                           int rank) {
  std::vector<float> values = spiked(layout, t, rank);
  if (rank == 0 && (t == 8 || t == 11)) values.back() = INFINITY;
  return values;
}

class LaggedClipping : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, LaggedClipping,
                         ::testing::Values(1, 2, 3, 4, 8));

ExchangeOptions clipped() {
  return {.max_grad_norm = 5, .lagged_clipping = true};
}

TEST_P(LaggedClipping, OfOnebitAdamEqualsPlainLoops) {
  const ParameterLayout layout = test::grouped_layout();
  const OnebitAdamOptions o{.freeze = {.step = 3},
                            .compression = {.exchange = clipped()}};
  for (const auto gradient : {spiked, skipped})
    test::expect_same_run(
        GetParam(), layout, {.steps = 16, .gradient = gradient},
        test::naive::OnebitAdam(GetParam(), layout, o,
                                test::normal(layout.size(), 3)),
        test::onebit_adam(o));
}

TEST_P(LaggedClipping, OfOnebitLambEqualsPlainLoops) {
  const ParameterLayout layout = test::grouped_layout();
  const OnebitLambOptions o{.freeze = {.step = 3},
                            .compression = {.exchange = clipped()}};
  test::expect_same_run(GetParam(), layout, {.steps = 16, .gradient = skipped},
                        test::naive::OnebitLamb(GetParam(), layout, o,
                                                test::normal(layout.size(), 3)),
                        test::onebit_lamb(o));
}

TEST_P(LaggedClipping, OfZeroOneAdamEqualsPlainLoops) {
  const ParameterLayout layout = test::grouped_layout();
  const ZeroOneAdamOptions o{.var_freeze_step = 5,
                             .var_update_scaler = 2,
                             .local_step_scaler = 4,
                             .local_step_clipper = 4,
                             .compression = {.exchange = clipped()}};
  test::expect_same_run(
      GetParam(), layout, {.steps = 22, .gradient = spiked},
      test::naive::ZeroOneAdam(GetParam(), layout, o,
                               test::normal(layout.size(), 3)),
      test::zero_one_adam(o));
}

// A rank alone: its norm is the gradient's, and rho is 1.
TEST(LaggedClipping, ReportsItsOwnNormAndWhatItWasClippedBy) {
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

TEST(LaggedClipping, ResumesWithItsReference) {
  const ParameterLayout layout = test::grouped_layout();
  for (const bool lags : {true, false})
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      OnebitAdamOptions o{.freeze = {.step = 3},
                          .compression = {.exchange = clipped()}};
      o.compression.exchange.lagged_clipping = lags;
      OnebitAdam whole(comm, layout, o);
      std::vector<float> params = test::normal(layout.size(), 3);
      const auto step = [&](OnebitAdam& optimizer, std::vector<float>& p,
                            std::int64_t t) {
        auto grads = spiked(layout, t, comm.rank());
        (void)optimizer.step(p, grads);
      };
      for (std::int64_t t = 1; t <= 7; ++t) step(whole, params, t);
      const StateDict state = copy_of(whole.state());
      EXPECT_EQ(state.has_scalar("clip_reference"), lags);
      OnebitAdam resumed(comm, layout, o);
      resumed.load_state_dict(state);
      std::vector<float> again = params;
      for (std::int64_t t = 8; t <= 12; ++t) {
        step(whole, params, t);
        step(resumed, again, t);
        ASSERT_EQ(again, params) << "step " << t;
      }
    });
}

TEST(LaggedClipping, MustBeTheSameOnAllRanks) {
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    OnebitAdamOptions o;
    o.compression.exchange.lagged_clipping = comm.rank() == 1;
    test::expect_error(ErrorCode::kInvalidArgument, {"lagged_clipping"},
                       [&] { OnebitAdam(comm, layout, o); });
  });
}

}  // namespace
}  // namespace thinwire::optim::lagged_clipping_test
