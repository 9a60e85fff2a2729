// SPDX-License-Identifier: Apache-2.0
#include "optim/gradient_clipping.h"

#include <gtest/gtest.h>

#include <cmath>

namespace thinwire::optim {
namespace {

TEST(ClipFactor, ShortensOnlyWhatIsTooLong) {
  EXPECT_EQ(clip_factor(4, 1), 0.25);
  EXPECT_EQ(clip_factor(1, 1), 1);
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(100, 0), 1);  // 0: never
  EXPECT_EQ(clip_factor(0, 1), 1);
}

TEST(GradientAgreement, NamesTheLowestRankThatIsNotFinite) {
  EXPECT_EQ(agreement_on({1, 2, 3}).nonfinite_rank, -1);
  EXPECT_EQ(agreement_on({1, INFINITY, NAN}).nonfinite_rank, 1);
  EXPECT_EQ(agreement_on({NAN, 1}).nonfinite_rank, 0);
  EXPECT_EQ(agreement_on({4, 9, 16, 7}).rms_norm, 3);  // sqrt(36 / 4)
}

TEST(CalibratedNorm, FollowsTheRatioOfMeanToRms) {
  CalibratedNorm norm;
  EXPECT_EQ(norm.estimate(2), 2);  // nothing measured: rho = 1
  norm.measure(/*mean_norm=*/1, /*rms_norm=*/4);
  EXPECT_EQ(norm.estimate(2), 0.5);  // the first ratio itself
  norm.measure(1, 2);
  EXPECT_DOUBLE_EQ(norm.estimate(1), 0.9 * 0.25 + 0.1 * 0.5);
  norm.measure(0, 0);  // says nothing
  EXPECT_DOUBLE_EQ(norm.estimate(1), 0.9 * 0.25 + 0.1 * 0.5);
}

TEST(CalibratedNorm, IsState) {
  CalibratedNorm one;
  one.measure(1, 4);
  StateDict state;
  one.save(state);
  CalibratedNorm two;
  two.load(state);
  one.measure(1, 2);
  two.measure(1, 2);
  EXPECT_EQ(one.estimate(1), two.estimate(1));
}

}  // namespace
}  // namespace thinwire::optim
