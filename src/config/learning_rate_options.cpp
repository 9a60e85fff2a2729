// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/require.h"
#include "thinwire/config/learning_rate.h"

namespace thinwire::config {

namespace {

// Numbers of steps up to this are exact in double, and their sums fit into 64
// bits.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 53;

void require_steps(std::string_view name, std::int64_t value,
                   std::int64_t least) {
  require(value >= least && value <= kMostSteps, name,
          fmt::format("in [{}, 2^53]", least), value);
}

void require_rate(std::string_view name, double value) {
  require(std::isfinite(value) && value >= 0, name, "finite and >= 0", value);
}

void require_fraction(std::string_view name, double value) {
  require(value >= 0 && value <= 1, name, "in [0, 1]", value);
}

void require_total(std::int64_t total, std::int64_t warmup) {
  const std::int64_t least = std::max<std::int64_t>(2, warmup);
  require(total >= least && total <= kMostSteps, "total_num_steps",
          fmt::format("given and >= warmup_num_steps = {}", least), total);
}

void check(const WarmupAndDecay& s) {
  require_steps("warmup_steps", s.warmup_steps, 0);
  require_fraction("final_fraction", s.final_fraction);
  const bool ends = s.decay == Decay::kLinear || s.decay == Decay::kCosine;
  require_steps("total_steps", s.total_steps, ends ? s.warmup_steps + 1 : 0);
}

void check(const WarmupLr& s) {
  require_rate("warmup_min_lr", s.warmup_min_lr);
  require_rate("warmup_max_lr", s.warmup_max_lr.value_or(0));
  require_steps("warmup_num_steps", s.warmup_num_steps, 1);
}

void check(const WarmupDecayLr& s) {
  require_rate("warmup_min_lr", s.warmup_min_lr);
  require_rate("warmup_max_lr", s.warmup_max_lr);
  require_steps("warmup_num_steps", s.warmup_num_steps, 1);
  require_total(s.total_num_steps, s.warmup_num_steps);
}

void check(const WarmupCosineLr& s) {
  require_fraction("warmup_min_ratio", s.warmup_min_ratio);
  require_fraction("cos_min_ratio", s.cos_min_ratio);
  require_steps("warmup_num_steps", s.warmup_num_steps, 1);
  require_total(s.total_num_steps, s.warmup_num_steps);
}

void check(const OneCycle& s) {
  require_rate("cycle_min_lr", s.cycle_min_lr);
  require_rate("cycle_max_lr", s.cycle_max_lr);
  require_rate("decay_lr_rate", s.decay_lr_rate);
  require_steps("cycle_first_step_size", s.cycle_first_step_size, 1);
  require_steps("cycle_second_step_size", s.cycle_second_step_size.value_or(1),
                1);
  require_steps("cycle_first_stair_count", s.cycle_first_stair_count, 0);
  require_steps("cycle_second_stair_count",
                s.cycle_second_stair_count.value_or(0), 0);
  require_steps("decay_step_size", s.decay_step_size, 0);
}

void check(const LrRangeTest& s) {
  require_rate("lr_range_test_min_lr", s.lr_range_test_min_lr);
  require_rate("lr_range_test_step_rate", s.lr_range_test_step_rate);
  require_steps("lr_range_test_step_size", s.lr_range_test_step_size, 1);
}

}  // namespace

void LearningRateSchedule::validate() const {
  std::visit([](const auto& s) { check(s); }, shape);
}

}  // namespace thinwire::config
