// SPDX-License-Identifier: Apache-2.0
// Differences between DeepSpeed's loss scalers and Thinwire's.
#include "thinwire/deepspeed/loss_scaler.h"

#include <gtest/gtest.h>

#include <limits>
#include <string_view>
#include <vector>

#include "support/errors.h"

namespace thinwire::deepspeed::loss_scaler_test {
namespace {

using precision::LossScalerOptions;
using Scales = std::vector<double>;

// The scale after each step; 'O' is one with an overflow.
Scales trace(const LossScalerOptions& options, std::string_view steps) {
  precision::LossScaler scaler = loss_scaler(options);
  Scales scales;
  for (const char step : steps) {
    scaler.update(step == 'O');
    scales.push_back(scaler.scale());
  }
  return scales;
}

TEST(DeepSpeedLossScaler, Item45NeverFallsWithAHysteresisOfZero) {
  EXPECT_EQ(trace(zero_loss_scaler({.hysteresis = 0}), "OOO"),
            Scales(3, 65536));
}

TEST(DeepSpeedLossScaler, Item46TheWrappersHoldAtTheMinimum) {
  EXPECT_EQ(
      trace(wrapper_loss_scaler({.initial_scale = 256, .window = 2}), "OONNNO"),
      (Scales{128, 64, 64, 64, 128, 64}));
  EXPECT_EQ(trace(wrapper_loss_scaler({.initial_scale = 16, .min_scale = 2}),
                  "OOOOOO"),
            (Scales{8, 4, 2, 2, 2, 2}));
}

TEST(DeepSpeedLossScaler, RisesToAMinimumAboveItsFirstScale) {
  EXPECT_EQ(trace({.initial_scale = 4,
                   .hysteresis = 1,
                   .min_scale = 64,
                   .at_minimum = precision::AtMinimum::kHold},
                  "NOO"),
            (Scales{4, 64, 64}));
}

TEST(DeepSpeedLossScaler, RefusesWhatNoScalerCanDo) {
  const auto refused = [](const LossScalerOptions& options,
                          std::initializer_list<std::string_view> parts) {
    test::expect_error(ErrorCode::kInvalidArgument, parts,
                       [&] { static_cast<void>(loss_scaler(options)); });
  };
  refused({.hysteresis = -1}, {"hysteresis", ">= 0", "-1"});
  refused({.window = 0}, {"window", "0"});
  refused({.min_scale = 0}, {"min_scale", "0"});
  refused({.min_scale = std::numeric_limits<double>::infinity()},
          {"min_scale", "inf"});
  EXPECT_NO_THROW(
      static_cast<void>(loss_scaler({.dynamic = false, .hysteresis = -1})));
}

}  // namespace
}  // namespace thinwire::deepspeed::loss_scaler_test
