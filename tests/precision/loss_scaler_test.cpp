// SPDX-License-Identifier: Apache-2.0
// Items 41 to 48 of docs/conformance.md, and settings that make no sense.
#include "thinwire/precision/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "support/errors.h"

namespace thinwire::precision::loss_scaler_test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The scale after each step; 'O' is one with an overflow.
std::vector<double> trace(LossScaler& scaler, std::string_view steps) {
  std::vector<double> scales;
  for (const char step : steps) {
    scaler.update(step == 'O');
    scales.push_back(scaler.scale());
  }
  return scales;
}

std::vector<double> trace(const LossScalerOptions& options,
                          std::string_view steps) {
  LossScaler scaler(options);
  return trace(scaler, steps);
}

using Scales = std::vector<double>;

TEST(LossScaler, Item41GrowsAfterAWindowAndOneStep) {
  EXPECT_EQ(trace({.initial_scale = 256, .window = 2}, "NNNNNNN"),
            (Scales{256, 256, 512, 512, 1024, 1024, 2048}));
}

TEST(LossScaler, Item42HysteresisIsSpentOnceUntilTheScaleGrows) {
  EXPECT_EQ(trace({.window = 2}, "OOONNNO"),
            (Scales{65536, 32768, 16384, 16384, 16384, 32768, 32768}));
}

TEST(LossScaler, Item43ConsecutiveHysteresisForgives) {
  EXPECT_EQ(trace({}, "ONONONO"),
            (Scales{65536, 65536, 32768, 32768, 16384, 16384, 8192}));
  EXPECT_EQ(trace({.consecutive_hysteresis = true}, "ONONONO"),
            Scales(7, 65536));
}

TEST(LossScaler, Item44ThePolicyAtTheMinimumIsAChoice) {
  const LossScalerOptions options{.initial_scale = 4, .hysteresis = 1};
  LossScaler stopping(options);
  EXPECT_EQ(trace(stopping, "OO"), (Scales{2, 1}));
  EXPECT_TRUE(stopping.is_at_minimum());
  test::expect_error(ErrorCode::kNonFinite, {"minimum of 1"},
                     [&] { stopping.update(true); });
  EXPECT_EQ(stopping.scale(), 1);

  LossScalerOptions holding = options;
  holding.at_minimum = AtMinimum::kHold;
  EXPECT_EQ(trace(holding, "OOOO"), (Scales{2, 1, 1, 1}));
}

TEST(LossScaler, Item45HysteresisOfZeroIsRefused) {
  test::expect_invalid({"hysteresis", ">= 1", "got 0"},
                       [] { LossScaler scaler({.hysteresis = 0}); });
}

TEST(LossScaler, Item47BadSettingsAreRefusedOnlyWhereTheyMatter) {
  const auto refused = [](LossScalerOptions options, std::string_view field) {
    test::expect_invalid({field}, [&] { options.validate(); });
  };
  refused({.window = 0}, "window");
  refused({.window = -3}, "window");
  refused({.min_scale = 0}, "min_scale");
  refused({.min_scale = NAN}, "min_scale");
  refused({.min_scale = 131072}, "min_scale");
  refused({.max_scale = 1024}, "max_scale");
  refused({.max_scale = NAN}, "max_scale");
  refused({.initial_scale = 0}, "initial_scale");
  refused({.initial_scale = -1}, "initial_scale");
  refused({.initial_scale = kInfinity}, "initial_scale");
  refused({.initial_scale = NAN, .dynamic = false}, "initial_scale");
  LossScalerOptions{
      .dynamic = false, .window = 0, .hysteresis = 0, .min_scale = 0}
      .validate();
}

TEST(LossScaler, Item48AStaticScaleNeverMoves) {
  EXPECT_EQ(trace({.initial_scale = 138, .dynamic = false}, "OONNO"),
            Scales(5, 138));
}

TEST(LossScaler, GrowthIsBounded) {
  EXPECT_EQ(trace({.initial_scale = 4, .window = 1, .max_scale = 16}, "NNNNN"),
            (Scales{4, 8, 16, 16, 16}));
}

TEST(LossScaler, ContinuesWhereItWasSaved) {
  const std::string_view steps = "NNONNNNOONNNNNO";
  for (std::size_t at = 0; at <= steps.size(); ++at) {
    const LossScalerOptions options{.initial_scale = 64, .window = 2};
    LossScaler whole(options);
    LossScaler first(options);
    (void)trace(whole, steps.substr(0, at));
    (void)trace(first, steps.substr(0, at));
    StateDict state;
    first.save(state);
    LossScaler second(options);
    second.load(state);
    EXPECT_EQ(second.scale(), first.scale());
    EXPECT_EQ(trace(second, steps.substr(at)), trace(whole, steps.substr(at)));
  }
}

TEST(LossScaler, ASavedScaleMustBePossible) {
  StateDict state;
  LossScaler scaler;
  scaler.save(state);
  state.put_real("loss_scale", NAN);
  test::expect_error(ErrorCode::kCorruptCheckpoint, {"loss scale", "nan"},
                     [&] { scaler.load(state); });
  EXPECT_EQ(scaler.scale(), 65536);
}

}  // namespace
}  // namespace thinwire::precision::loss_scaler_test
