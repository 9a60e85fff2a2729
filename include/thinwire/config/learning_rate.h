// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <variant>

namespace thinwire::config {

/// Rise of the rate during warm-up.
enum class Warmup {
  kLinear,
  kLog,  ///< Grows with log(step), so it is steep at first.
};

/// Fall of the rate after warm-up.
enum class Decay {
  kNone,
  kLinear,
  kCosine,       ///< Half a wave.
  kInverseSqrt,  ///< Proportional to 1 / sqrt(step).
};

/// Return "linear" or "log"; "none", "linear", "cosine" or "inverse_sqrt".
[[nodiscard]] std::string_view to_string(Warmup warmup) noexcept;
[[nodiscard]] std::string_view to_string(Decay decay) noexcept;

/// In the shapes below, n is the number of steps applied so far, so rate n
/// applies to step n + 1. Rates are finite and >= 0, and numbers of steps count
/// applied steps.

/// Thinwire's own schedule. The warm-up reaches the optimizer's learning rate
/// in step warmup_steps:
///   linear: base * step / warmup_steps
///   log:    base * log(1 + step) / log(1 + warmup_steps)
/// The decay reaches final_fraction of it in step total_steps and stays there.
struct WarmupAndDecay {
  Decay decay = Decay::kNone;
  Warmup warmup = Warmup::kLinear;
  std::int64_t warmup_steps = 0;  ///< >= 0.
  /// Steps of the run; > warmup_steps if the decay is linear or a cosine.
  /// Otherwise >= 0 and without effect.
  std::int64_t total_steps = 0;
  double final_fraction = 0;  ///< In [0, 1]; the minimum with kInverseSqrt.

  bool operator==(const WarmupAndDecay&) const = default;
};

/// The other shapes give DeepSpeed's rates (lr_schedules.py of 0.19). In
/// WarmupLr and WarmupDecayLr the first two steps both use the minimum rate.
/// Below, w is warmup_num_steps, at least 2, and i = n - 1. During the warm-up,
/// that is for i < w, gamma(i) is i / w (linear) or log(i + 1) / log(w).

/// Rate min + (max - min) gamma(i), and max after the warm-up.
struct WarmupLr {
  double warmup_min_lr = 0;               ///< Rate of steps 1 and 2.
  std::optional<double> warmup_max_lr{};  ///< Unset for the optimizer's.
  std::int64_t warmup_num_steps = 1000;   ///< >= 1.
  Warmup warmup_type = Warmup::kLog;

  bool operator==(const WarmupLr&) const = default;
};

/// Rate min + (max - min) gamma(i), and after the warm-up
///   min + (max - min) max(0, (total - i) / max(1, total - w))
struct WarmupDecayLr {
  std::int64_t total_num_steps = 0;  ///< >= warmup_num_steps; required.
  double warmup_min_lr = 0;
  double warmup_max_lr = 0.001;
  std::int64_t warmup_num_steps = 1000;  ///< >= 1.
  Warmup warmup_type = Warmup::kLog;

  bool operator==(const WarmupDecayLr&) const = default;
};

/// Rate in fractions of the optimizer's. It is 0 in step 1, then
///   r + (1 - r) gamma(i)
/// in the warm-up, then half a cosine from 1 to cos_min_ratio at i + 1 = total.
struct WarmupCosineLr {
  std::int64_t total_num_steps = 0;      ///< >= warmup_num_steps; required.
  double warmup_min_ratio = 0;           ///< r, in [0, 1].
  std::int64_t warmup_num_steps = 1000;  ///< >= 1.
  double cos_min_ratio = 0.0001;         ///< In [0, 1].
  Warmup warmup_type = Warmup::kLog;

  bool operator==(const WarmupCosineLr&) const = default;
};

/// Rate that rises from min to max and falls back (arXiv:1803.09820). k steps
/// later it is
///   min / (1 + decay_lr_rate k / decay_step_size)
/// The momentum does not cycle.
struct OneCycle {
  double cycle_min_lr = 0;  ///< Required in files.
  double cycle_max_lr = 0;  ///< Required in files.
  double decay_lr_rate = 0;
  std::int64_t cycle_first_step_size = 2000;               ///< >= 1.
  std::optional<std::int64_t> cycle_second_step_size{};    ///< Unset: as first.
  std::int64_t cycle_first_stair_count = 0;                ///< 0 for no stairs.
  std::optional<std::int64_t> cycle_second_stair_count{};  ///< Unset: as first.
  std::int64_t decay_step_size = 0;                        ///< 0 for no decay.

  bool operator==(const OneCycle&) const = default;
};

/// Rate min (1 + step_rate n / step_size), for finding the largest usable rate.
struct LrRangeTest {
  double lr_range_test_min_lr = 1e-3;
  std::int64_t lr_range_test_step_size = 2000;  ///< >= 1.
  double lr_range_test_step_rate = 1;
  bool lr_range_test_staircase = false;  ///< Rounds n / size down.

  bool operator==(const LrRangeTest&) const = default;
};

/// A learning rate for every step; the default is the optimizer's own rate. The
/// only state is the number of applied steps, so skipped steps do not advance
/// it.
struct LearningRateSchedule {
  std::variant<WarmupAndDecay, WarmupLr, WarmupDecayLr, WarmupCosineLr,
               OneCycle, LrRangeTest>
      shape{};

  /// Returns the rate of the next step after `applied_steps` (>= 0) steps, for
  /// parameters whose optimizer was given the rate `base`.
  [[nodiscard]] double rate(double base, std::int64_t applied_steps) const;

  /// Returns whether the rate is the optimizer's own in every step.
  [[nodiscard]] bool is_constant() const;

  /// Returns the number of first steps in which the rate rises; 0 for
  /// LrRangeTest, whose rate has no highest value.
  [[nodiscard]] std::int64_t warmup_steps() const;

  /// Checks the shape. Throws Error(kInvalidArgument) naming the field, its
  /// range and its value.
  void validate() const;

  bool operator==(const LearningRateSchedule&) const = default;
};

/// A schedule that the caller defines. Returns the rate of the next step after
/// `applied_steps` (>= 0) steps, for parameters whose optimizer was given the
/// rate `base`. It must be finite, >= 0, and the same on all ranks.
using LearningRateFunction =
    std::function<double(double base, std::int64_t applied_steps)>;

}  // namespace thinwire::config
