// SPDX-License-Identifier: Apache-2.0
#include "optim/auto_freeze.h"

#include <gtest/gtest.h>

#include <cmath>

namespace thinwire::optim {
namespace {

// The step at which a sequence of norms fires, or 0.
std::int64_t fires(const AutoFreeze::Options& options,
                   const std::function<double(std::int64_t)>& norm) {
  AutoFreeze freeze(options);
  for (std::int64_t t = 1; t <= 2000; ++t)
    if (freeze.observe(norm(t))) return t;
  return 0;
}

TEST(AutoFreeze, FiresOnceAWindowHasPassedOnASettledVariance) {
  // beta1 = 0.9: a window of 10 steps, and t must exceed it.
  EXPECT_EQ(fires({.earliest = 1}, [](auto) { return 1.0; }), 11);
  EXPECT_EQ(fires({.beta1 = 0.5, .earliest = 1}, [](auto) { return 1.0; }), 3);
}

TEST(AutoFreeze, WaitsForTheEarliestStepAndNotPastTheLatest) {
  EXPECT_EQ(fires({.earliest = 100}, [](auto) { return 1.0; }), 100);
  // Grows by a fifth every step: never settled.
  const auto growing = [](std::int64_t t) {
    return std::pow(1.2, static_cast<double>(t));
  };
  EXPECT_EQ(fires({.earliest = 1, .latest = 57}, growing), 57);
}

TEST(AutoFreeze, FallingAndRisingCountAlike) {
  const auto settles_at_200 = [](double sign) {
    return [sign](std::int64_t t) {
      return std::exp(sign * 0.05 *
                      static_cast<double>(std::min<std::int64_t>(t, 200)));
    };
  };
  const auto up = fires({.earliest = 1}, settles_at_200(1));
  const auto down = fires({.earliest = 1}, settles_at_200(-1));
  EXPECT_EQ(up, down);
  // The window is then ceil(t / 8) = 27 or so: |ln ratio| <= -ln 0.9 needs all
  // but two of its steps behind step 200.
  EXPECT_GT(up, 200);
  EXPECT_LT(up, 235);
}

TEST(AutoFreeze, NeverFiresOnAVarianceOfZeroBeforeTheLatest) {
  EXPECT_EQ(fires({.earliest = 1, .latest = 500}, [](auto) { return 0.0; }),
            500);
}

TEST(AutoFreeze, ItsHistoryIsState) {
  AutoFreeze one({.earliest = 1});
  for (int t = 1; t <= 8; ++t) EXPECT_FALSE(one.observe(1.0));
  StateDict state;
  one.save(state);
  AutoFreeze two({.earliest = 1});
  two.load(state);
  EXPECT_FALSE(two.observe(1.0));
  EXPECT_FALSE(two.observe(1.0));
  EXPECT_TRUE(two.observe(1.0));
}

}  // namespace
}  // namespace thinwire::optim
