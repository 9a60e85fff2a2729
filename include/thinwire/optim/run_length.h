// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

/// Ends of the stages of low-bit optimizers in a run of N steps, unless options
/// name them. The rule is Thinwire's own, from measurements
/// (docs/algorithms/common.md).
namespace thinwire::optim {

/// Value of freeze_step for an automatic freeze, which waits until the variance
/// has settled.
inline constexpr std::int64_t kAutoFreeze = -1;
/// Default of freeze_step and var_freeze_step if the run's length is unknown,
/// as in DeepSpeed.
inline constexpr std::int64_t kDefaultFreezeStep = 100'000;

/// Returns the last exact step of 1-bit Adam, lean 1-bit Adam and 1-bit LAMB.
/// `total_steps` is >= 1. The result is a fifth of it, limited to [1, 1000].
[[nodiscard]] constexpr std::int64_t freeze_step_of_run(
    std::int64_t total_steps) noexcept {
  return std::clamp<std::int64_t>(total_steps / 5, 1, 1000);
}

/// Bits in which 1-bit Adam and 1-bit LAMB average gradients in exact steps, if
/// the run's length determines freeze_step.
inline constexpr int kWarmupBitsOfRun = 8;

/// Returns the number of first steps that average gradients in 4 or 8 bits,
/// before low-rank products are sent. `total_steps` is >= 1. The result is a
/// twentieth of it, at least 20.
[[nodiscard]] constexpr std::int64_t first_low_rank_steps_of_run(
    std::int64_t total_steps) noexcept {
  return std::max<std::int64_t>(20, total_steps / 20);
}

/// Stages of 0/1 Adam; the defaults are DeepSpeed's.
struct ZeroOneStages {
  std::int64_t var_freeze_step = kDefaultFreezeStep;
  std::int64_t var_update_scaler = 16;
  std::int64_t local_step_scaler = 32'678;
  std::int64_t local_step_clipper = 16;
  /// Bits in which steps that update the variance average gradients, or 0 for
  /// exact averages.
  int warmup_bits = 0;

  bool operator==(const ZeroOneStages&) const = default;
};

/// Returns the stages of a run of `total_steps`, >= 1. The variance is frozen
/// after half of it. It is updated from gradients in 4 bits, and the interval
/// between updates doubles after every 8. After each 12 % of the run the
/// interval between syncs doubles. It grows up to 4 in runs below 10,000 steps,
/// and up to 16 otherwise. Only a long run can recover the loss that local
/// steps cost.
[[nodiscard]] constexpr ZeroOneStages zero_one_stages_of_run(
    std::int64_t total_steps) noexcept {
  const auto percent = [total_steps](std::int64_t of_steps) {
    // Computed in two parts, so that no number of steps overflows.
    return std::max<std::int64_t>(
        1, total_steps / 100 * of_steps + total_steps % 100 * of_steps / 100);
  };
  return {.var_freeze_step = percent(50),
          .var_update_scaler = 8,
          .local_step_scaler = percent(12),
          .local_step_clipper = total_steps < 10'000 ? 4 : 16,
          .warmup_bits = 4};
}

}  // namespace thinwire::optim
