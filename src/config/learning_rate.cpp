// SPDX-License-Identifier: Apache-2.0
#include "thinwire/config/learning_rate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/require.h"

namespace thinwire::config {

namespace {

double real(std::int64_t count) { return static_cast<double>(count); }

// At least 2, because DeepSpeed divides by the logarithm of the length.
std::int64_t warmup_length(std::int64_t steps) {
  return std::max<std::int64_t>(2, steps);
}

double gamma(Warmup warmup, std::int64_t i, std::int64_t length) {
  if (warmup == Warmup::kLinear) return real(i) / real(length);
  return 1.0 / std::log(real(length)) * std::log(real(i + 1));
}

double half_wave(double progress) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

double rate_of(const WarmupAndDecay& s, double base, std::int64_t n) {
  const std::int64_t step = n + 1;
  if (step <= s.warmup_steps) {
    if (s.warmup == Warmup::kLinear)
      return base * real(step) / real(s.warmup_steps);
    return base * std::log(real(step + 1)) / std::log(real(s.warmup_steps + 1));
  }
  if (s.decay == Decay::kNone) return base;
  const double rest = 1.0 - s.final_fraction;
  if (s.decay == Decay::kInverseSqrt) {
    const double peak = real(std::max<std::int64_t>(1, s.warmup_steps));
    return base * std::max(s.final_fraction, std::sqrt(peak / real(step)));
  }
  const double progress = std::min(
      1.0, real(step - s.warmup_steps) / real(s.total_steps - s.warmup_steps));
  const double left =
      s.decay == Decay::kLinear ? 1.0 - progress : half_wave(progress);
  return base * (s.final_fraction + rest * left);
}

double rate_of(const WarmupLr& s, double base, std::int64_t n) {
  const double max = s.warmup_max_lr.value_or(base);
  const std::int64_t length = warmup_length(s.warmup_num_steps);
  if (n == 0) return s.warmup_min_lr;
  if (n - 1 >= length) return max;
  return s.warmup_min_lr +
         (max - s.warmup_min_lr) * gamma(s.warmup_type, n - 1, length);
}

double rate_of(const WarmupDecayLr& s, double, std::int64_t n) {
  const std::int64_t length = warmup_length(s.warmup_num_steps);
  if (n == 0) return s.warmup_min_lr;
  const std::int64_t i = n - 1;
  const double factor =
      i < length
          ? gamma(s.warmup_type, i, length)
          : std::max(0.0, real(s.total_num_steps - i) /
                              std::max(1.0, real(s.total_num_steps - length)));
  return s.warmup_min_lr + (s.warmup_max_lr - s.warmup_min_lr) * factor;
}

double rate_of(const WarmupCosineLr& s, double base, std::int64_t n) {
  const std::int64_t length = warmup_length(s.warmup_num_steps);
  if (n == 0) return 0;
  const std::int64_t i = n - 1;
  if (i < length)
    return base * (s.warmup_min_ratio + gamma(s.warmup_type, i, length) *
                                            (1.0 - s.warmup_min_ratio));
  const auto total = std::max<std::int64_t>(1, s.total_num_steps - length);
  const double progress = std::min(1.0, real(i - length + 1) / real(total));
  const double wave = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return base * std::max(0.0, s.cos_min_ratio + (1.0 - s.cos_min_ratio) * wave);
}

// Returns a value from 0, at both ends of the cycle, to 1 at its top.
double cycle_height(const OneCycle& s, double n) {
  const double first = real(s.cycle_first_step_size);
  const double second =
      real(s.cycle_second_step_size.value_or(s.cycle_first_step_size));
  const double total = first + second;
  const double ratio = first / total;
  const double x = 1.0 + n / total - std::floor(1.0 + n / total);
  const bool rising = x <= ratio;
  const double stairs = real(
      rising ? s.cycle_first_stair_count
             : s.cycle_second_stair_count.value_or(s.cycle_first_stair_count));
  if (stairs > 0) {
    // Uses the step count, because x could be rounded below the top stair.
    const double offset = std::fmod(n, total);
    const double position = offset <= first
                                ? offset * stairs / first
                                : (total - offset) * stairs / second;
    return std::floor(position) / stairs;
  }
  return rising ? x / ratio : (x - 1.0) / (ratio - 1.0);
}

double rate_of(const OneCycle& s, double, std::int64_t n) {
  const std::int64_t total =
      s.cycle_first_step_size +
      s.cycle_second_step_size.value_or(s.cycle_first_step_size);
  if (n <= total)
    return s.cycle_min_lr +
           (s.cycle_max_lr - s.cycle_min_lr) * cycle_height(s, real(n));
  if (s.decay_step_size == 0) return s.cycle_min_lr;
  const double interval = real(n - total) / real(s.decay_step_size);
  return s.cycle_min_lr / (1.0 + s.decay_lr_rate * interval);
}

double rate_of(const LrRangeTest& s, double, std::int64_t n) {
  const double size = real(s.lr_range_test_step_size);
  const double interval =
      s.lr_range_test_staircase ? std::floor(real(n) / size) : real(n) / size;
  return s.lr_range_test_min_lr * (1.0 + s.lr_range_test_step_rate * interval);
}

}  // namespace

std::string_view to_string(Warmup warmup) noexcept {
  return warmup == Warmup::kLinear ? "linear" : "log";
}

std::string_view to_string(Decay decay) noexcept {
  switch (decay) {
    case Decay::kNone:
      return "none";
    case Decay::kLinear:
      return "linear";
    case Decay::kCosine:
      return "cosine";
    case Decay::kInverseSqrt:
      return "inverse_sqrt";
  }
  return "unknown";
}

double LearningRateSchedule::rate(double base,
                                  std::int64_t applied_steps) const {
  require(applied_steps >= 0, "applied_steps", ">= 0", applied_steps);
  return std::visit(
      [&](const auto& s) { return rate_of(s, base, applied_steps); }, shape);
}

bool LearningRateSchedule::is_constant() const {
  const auto* own = std::get_if<WarmupAndDecay>(&shape);
  return own != nullptr && own->decay == Decay::kNone && own->warmup_steps == 0;
}

std::int64_t LearningRateSchedule::warmup_steps() const {
  return std::visit(
      []<class Shape>(const Shape& s) -> std::int64_t {
        if constexpr (requires { s.warmup_steps; })
          return s.warmup_steps;
        else if constexpr (requires { s.warmup_num_steps; })
          return s.warmup_num_steps;
        else if constexpr (requires { s.cycle_first_step_size; })
          return s.cycle_first_step_size;
        else
          return 0;
      },
      shape);
}

}  // namespace thinwire::config
