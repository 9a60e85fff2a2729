// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <variant>

namespace thinwire::config {

/// How the rate rises during a warm-up.
enum class Warmup {
  kLinear,
  kLog,  ///< With the logarithm of the step: steep at first.
};

/// How it falls afterwards.
enum class Decay {
  kNone,
  kLinear,
  kCosine,       ///< Half a wave.
  kInverseSqrt,  ///< With 1 / sqrt(step), from the end of the warm-up on.
};

/// "linear", "log"; "none", "linear", "cosine", "inverse_sqrt".
[[nodiscard]] std::string_view to_string(Warmup warmup) noexcept;
[[nodiscard]] std::string_view to_string(Decay decay) noexcept;

/// The shapes below take n, the number of steps applied so far, so rate n is
/// that of step n + 1. Rates are finite and >= 0, numbers of steps counts of
/// applied steps.

/// Ours: the optimizer's learning rate is reached in step warmup_steps (linear:
/// base * step / warmup_steps; log: base * log(1 + step) / log(1 +
/// warmup_steps)), and final_fraction of it in step total_steps and ever after.
struct WarmupAndDecay {
  Decay decay = Decay::kNone;
  Warmup warmup = Warmup::kLinear;
  std::int64_t warmup_steps = 0;  ///< >= 0.
  /// Of the whole run; > warmup_steps where the decay is linear or a cosine,
  /// else without effect, >= 0.
  std::int64_t total_steps = 0;
  double final_fraction = 0;  ///< In [0, 1]; kInverseSqrt: never below it.

  bool operator==(const WarmupAndDecay&) const = default;
};

/// The rest is DeepSpeed's, number by number (lr_schedules.py of 0.19). There
/// the first two steps both use the initial rate; w below is warmup_num_steps,
/// at least 2, and i = n - 1. In its warm-up gamma(i) is i / w (linear) or
/// log(i + 1) / log(w), for i < w.

/// min + (max - min) gamma(i), and max after the warm-up.
struct WarmupLr {
  double warmup_min_lr = 0;               ///< Before step 2.
  std::optional<double> warmup_max_lr{};  ///< Unset: the optimizer's.
  std::int64_t warmup_num_steps = 1000;   ///< >= 1.
  Warmup warmup_type = Warmup::kLog;

  bool operator==(const WarmupLr&) const = default;
};

/// The same, and min + (max - min) (total - i) / (total - w) afterwards.
struct WarmupDecayLr {
  std::int64_t total_num_steps = 0;  ///< >= w: has to be given.
  double warmup_min_lr = 0;
  double warmup_max_lr = 0.001;
  std::int64_t warmup_num_steps = 1000;  ///< >= 1.
  Warmup warmup_type = Warmup::kLog;

  bool operator==(const WarmupDecayLr&) const = default;
};

/// Fractions of the optimizer's rate: 0 in step 1, r + (1 - r) gamma(i) in the
/// warm-up, then half a cosine from 1 to cos_min_ratio at i + 1 = total.
struct WarmupCosineLr {
  std::int64_t total_num_steps = 0;      ///< >= w: has to be given.
  double warmup_min_ratio = 0;           ///< r, in [0, 1].
  std::int64_t warmup_num_steps = 1000;  ///< >= 1.
  double cos_min_ratio = 0.0001;         ///< In [0, 1].
  Warmup warmup_type = Warmup::kLog;

  bool operator==(const WarmupCosineLr&) const = default;
};

/// Up from min to max and down again (arXiv:1803.09820), then
/// min / (1 + decay_lr_rate steps / decay_step_size). The momentum does not
/// cycle.
struct OneCycle {
  double cycle_min_lr = 0;  ///< Has to be given in files.
  double cycle_max_lr = 0;  ///< Has to be given in files.
  double decay_lr_rate = 0;
  std::int64_t cycle_first_step_size = 2000;               ///< >= 1.
  std::optional<std::int64_t> cycle_second_step_size{};    ///< >= 1; as first.
  std::int64_t cycle_first_stair_count = 0;                ///< 0: no stairs.
  std::optional<std::int64_t> cycle_second_stair_count{};  ///< Unset: as first.
  std::int64_t decay_step_size = 0;                        ///< 0: no decay.

  bool operator==(const OneCycle&) const = default;
};

/// min (1 + rate n / size), to find out which rate is too much.
struct LrRangeTest {
  double lr_range_test_min_lr = 1e-3;
  std::int64_t lr_range_test_step_size = 2000;  ///< >= 1.
  double lr_range_test_step_rate = 1;
  bool lr_range_test_staircase = false;  ///< n / size rounded down.

  bool operator==(const LrRangeTest&) const = default;
};

/// A learning rate for every step; by default the optimizer's own, always. Its
/// only state is the number of applied steps, so skipped ones do not advance
/// it.
struct LearningRateSchedule {
  std::variant<WarmupAndDecay, WarmupLr, WarmupDecayLr, WarmupCosineLr,
               OneCycle, LrRangeTest>
      shape{};

  /// The rate of the next step after `applied_steps` (>= 0) of them, for
  /// parameters whose optimizer was given the rate `base`.
  [[nodiscard]] double rate(double base, std::int64_t applied_steps) const;

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  void validate() const;

  bool operator==(const LearningRateSchedule&) const = default;
};

/// A schedule of one's own: the rate of the next step after `applied_steps`
/// (>= 0) of them, for parameters whose optimizer was given the rate `base`.
/// Finite and >= 0, and the same on all ranks.
using LearningRateFunction =
    std::function<double(double base, std::int64_t applied_steps)>;

}  // namespace thinwire::config
