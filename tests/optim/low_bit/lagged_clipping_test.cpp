// SPDX-License-Identifier: Apache-2.0
// ExchangeOptions::lagged_clipping: what a compressed step is clipped by. Plain
// loops have it among their variants, and resume_test.cpp among its cases.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "optim/gradient_agreement.h"
#include "optim/support.h"

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

}  // namespace
}  // namespace thinwire::optim::lagged_clipping_test
