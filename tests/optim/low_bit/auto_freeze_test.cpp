// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/freeze/auto_freeze.h"

#include <gtest/gtest.h>

#include <cmath>

namespace thinwire::optim::auto_freeze_test {
namespace {

// The step at which a sequence of norms fires, or 0.
std::int64_t fires(const FreezeOptions& options,
                   const std::function<double(std::int64_t)>& norm) {
  AutoFreeze freeze(options);
  for (std::int64_t t = 1; t <= 2000; ++t)
    if (freeze.observe(norm(t))) return t;
  return 0;
}

// On a variance that is settled from the start.
std::int64_t earliest(const FreezeOptions& options) {
  return fires(options, [](auto) { return 1.0; });
}

TEST(AutoFreeze, FiresOnceAWindowHasPassedOnASettledVariance) {
  // A window of 50 steps at least, and t must exceed it.
  EXPECT_EQ(earliest({.min_step = 1}), 51);
}

TEST(AutoFreeze, AfterTheFirstHundredStepsTheWindowIsHalfOfThem) {
  // A mean over all steps of what falls as 1 / t: any fixed window would soon
  // see no change, half of all steps sees 2.
  const auto falling = [](std::int64_t t) {
    return 1 / static_cast<double>(t);
  };
  EXPECT_EQ(fires({.min_step = 1}, falling), 0);
  // From step 300 on 1.15 times what it was: near enough at once.
  const auto rises_at_300 = [](double to) {
    return [to](std::int64_t t) { return t < 300 ? 1.0 : to; };
  };
  EXPECT_EQ(fires({.min_step = 300}, rises_at_300(1.15)), 300);
  // 1.5 times: not before the window begins behind it.
  EXPECT_EQ(fires({.min_step = 300}, rises_at_300(1.5)), 599);
}

TEST(AutoFreeze, WaitsForTheEarliestStepAndNotPastTheLatest) {
  EXPECT_EQ(earliest({.min_step = 70}), 70);
  // Grows by a fifth every step: never settled.
  const auto growing = [](std::int64_t t) {
    return std::pow(1.2, static_cast<double>(t));
  };
  EXPECT_EQ(fires({.min_step = 1, .max_step = 57}, growing), 57);
}

TEST(AutoFreeze, WaitsForTheWarmUp) {
  EXPECT_EQ(earliest({.total_steps = 9000}), 900);
  EXPECT_EQ(earliest({.lr_warmup_steps = 1500, .total_steps = 9000}), 1500);
  // A warm-up that ends early is no reason to freeze early.
  EXPECT_EQ(earliest({.lr_warmup_steps = 50, .total_steps = 9000}), 900);
  EXPECT_EQ(earliest({.lr_warmup_steps = 0}), 100);
  EXPECT_EQ(earliest({}), 100);
  // A short run freezes at a fifth of its steps, whatever the least may be.
  EXPECT_EQ(earliest({.total_steps = 200}), 40);
}

TEST(AutoFreeze, TheLatestStepIsNotBeforeTheEarliest) {
  EXPECT_EQ(earliest({.lr_warmup_steps = 500, .total_steps = 1000}), 500);
  EXPECT_EQ(earliest({.lr_warmup_steps = 500, .max_step = 20}), 500);
  EXPECT_EQ(earliest({.max_step = 20}), 100);
  EXPECT_EQ(earliest({.min_step = 10, .max_step = 20}), 20);
}

TEST(AutoFreeze, FallingAndRisingCountAlike) {
  const auto settles_at_200 = [](double sign) {
    return [sign](std::int64_t t) {
      return std::exp(sign * 0.05 *
                      static_cast<double>(std::min<std::int64_t>(t, 200)));
    };
  };
  const auto up = fires({.min_step = 1}, settles_at_200(1));
  const auto down = fires({.min_step = 1}, settles_at_200(-1));
  EXPECT_EQ(up, down);
  // |ln ratio| <= -ln 0.85 = 0.163: all but 3 of a window's t / 2 steps must
  // lie behind step 200.
  EXPECT_EQ(up, 393);
}

TEST(AutoFreeze, NeverFiresOnAVarianceOfZeroBeforeTheLatest) {
  EXPECT_EQ(fires({.min_step = 1, .max_step = 500}, [](auto) { return 0.0; }),
            500);
}

}  // namespace
}  // namespace thinwire::optim::auto_freeze_test
