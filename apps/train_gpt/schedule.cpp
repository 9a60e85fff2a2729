// SPDX-License-Identifier: Apache-2.0
#include "apps/train_gpt/schedule.h"

#include <cmath>
#include <numbers>

namespace thinwire::train_gpt {

double Schedule::learning_rate(std::int64_t step) const {
  constexpr double kFinalFraction = 0.1;
  if (step <= warmup_steps) {
    return peak * static_cast<double>(step) / static_cast<double>(warmup_steps);
  }
  const double progress = static_cast<double>(step - warmup_steps) /
                          static_cast<double>(steps - warmup_steps);
  const double wave = 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return peak * (kFinalFraction + (1.0 - kFinalFraction) * wave);
}

}  // namespace thinwire::train_gpt
