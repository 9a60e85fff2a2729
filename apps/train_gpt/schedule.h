// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace thinwire::train_gpt {

/// Linear warm-up to `peak`, then half a cosine down to a tenth of it.
struct Schedule {
  double peak = 0;
  std::int64_t warmup_steps = 0;  ///< >= 0.
  std::int64_t steps = 0;         ///< >= 1.

  /// Learning rate of step `step` in [1, steps]: `peak` at the end of the
  /// warm-up, a tenth of it in the last step.
  [[nodiscard]] double learning_rate(std::int64_t step) const;
};

}  // namespace thinwire::train_gpt
