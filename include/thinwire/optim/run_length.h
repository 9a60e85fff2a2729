// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

/// The rule by run length: where the stages of the low-bit optimizers end in a
/// run of N steps, if nobody names them. Source: our own, from what was
/// measured (docs/algorithms/common.md).
namespace thinwire::optim {

/// freeze_step: watch the variance, and freeze when it has settled.
inline constexpr std::int64_t kAutoFreeze = -1;
/// freeze_step and var_freeze_step where neither they nor the run's length are
/// given: DeepSpeed's.
inline constexpr std::int64_t kDefaultFreezeStep = 100'000;

/// The last exact step of 1-bit Adam, lean 1-bit Adam and 1-bit LAMB in a run
/// of `total_steps`, >= 1: a fifth of it, in [1, 1000].
[[nodiscard]] constexpr std::int64_t freeze_step_of_run(
    std::int64_t total_steps) noexcept {
  return std::clamp<std::int64_t>(total_steps / 5, 1, 1000);
}

/// 0/1 Adam's stages; the defaults are DeepSpeed's.
struct ZeroOneStages {
  std::int64_t var_freeze_step = kDefaultFreezeStep;
  std::int64_t var_update_scaler = 16;
  std::int64_t local_step_scaler = 32'678;
  std::int64_t local_step_clipper = 16;

  bool operator==(const ZeroOneStages&) const = default;
};

/// Those of a run of `total_steps`, >= 1: the variance is frozen after half of
/// it, and after each 12 % the interval between syncs doubles, up to 4 in runs
/// below 10,000 steps, else 16: what local steps cost in loss is lost again
/// only in a long run.
[[nodiscard]] constexpr ZeroOneStages zero_one_stages_of_run(
    std::int64_t total_steps) noexcept {
  const auto percent = [total_steps](std::int64_t of_steps) {
    // Apart, so that no number of steps overflows.
    return std::max<std::int64_t>(
        1, total_steps / 100 * of_steps + total_steps % 100 * of_steps / 100);
  };
  return {.var_freeze_step = percent(50),
          .local_step_scaler = percent(12),
          .local_step_clipper = total_steps < 10'000 ? 4 : 16};
}

/// The last exact step by options of 1-bit Adam, lean 1-bit Adam or 1-bit LAMB:
/// freeze_step where it is named, which may be kAutoFreeze, else by the rule.
template <class Options>
[[nodiscard]] constexpr std::int64_t freeze_step_of(const Options& options) {
  return options.freeze_step.value_or(
      options.total_steps ? freeze_step_of_run(*options.total_steps)
                          : kDefaultFreezeStep);
}

/// The same of all of 0/1 Adam's.
template <class Options>
[[nodiscard]] constexpr ZeroOneStages zero_one_stages_of(
    const Options& options) {
  const ZeroOneStages rule = options.total_steps
                                 ? zero_one_stages_of_run(*options.total_steps)
                                 : ZeroOneStages();
  return {
      .var_freeze_step = options.var_freeze_step.value_or(rule.var_freeze_step),
      .var_update_scaler =
          options.var_update_scaler.value_or(rule.var_update_scaler),
      .local_step_scaler =
          options.local_step_scaler.value_or(rule.local_step_scaler),
      .local_step_clipper =
          options.local_step_clipper.value_or(rule.local_step_clipper)};
}

}  // namespace thinwire::optim
