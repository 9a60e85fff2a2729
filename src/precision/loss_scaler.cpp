// SPDX-License-Identifier: Apache-2.0
#include "thinwire/precision/loss_scaler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/require.h"
#include "optim/saved_state.h"
#include "thinwire/core/error.h"

namespace thinwire::precision {

namespace {

bool is_positive(double value) { return std::isfinite(value) && value > 0; }

// The smallest scale, because losses and gradients are multiplied in fp32.
constexpr double kLeastScale = 0x1p-126;
constexpr double kMostScale = 0x1p127;
constexpr const char* kScales = "in [2^-126, 2^127]";

bool is_scale(double value) {
  return value >= kLeastScale && value <= kMostScale;
}

}  // namespace

void LossScalerOptions::validate() const {
  require(is_scale(initial_scale), "initial_scale", kScales, initial_scale);
  if (!dynamic) return;
  require(window >= 1, "window", ">= 1", window);
  require(hysteresis >= 1, "hysteresis", ">= 1", hysteresis);
  require(is_positive(min_scale), "min_scale", "finite and > 0", min_scale);
  require(min_scale <= initial_scale, "min_scale",
          fmt::format("at most initial_scale = {}", initial_scale), min_scale);
  require(max_scale >= initial_scale, "max_scale",
          fmt::format("at least {}, which initial_scale or min_scale is",
                      initial_scale),
          max_scale);
}

std::string LossScalerOptions::describe() const {
  return fmt::format("loss_scale={}/{}/{}/{}/{}/{}/{}/{}", initial_scale,
                     dynamic, window, hysteresis, consecutive_hysteresis,
                     min_scale, max_scale,
                     at_minimum == AtMinimum::kStop ? "stop" : "hold");
}

LossScaler::LossScaler(const LossScalerOptions& options) {
  options.validate();
  begin(options);
}

LossScaler LossScaler::unchecked(const LossScalerOptions& options) {
  LossScaler scaler;
  scaler.begin(options);
  return scaler;
}

void LossScaler::begin(const LossScalerOptions& options) {
  options_ = options;
  scale_ = options.initial_scale;
  overflows_left_ = options.hysteresis;
}

void LossScaler::set_scale(double scale) {
  require(
      is_scale(scale) && (!options_.dynamic || (scale >= options_.min_scale &&
                                                scale <= options_.max_scale)),
      "loss_scale",
      options_.dynamic
          ? fmt::format("in [{}, {}]", options_.min_scale, options_.max_scale)
          : kScales,
      scale);
  scale_ = scale;
}

bool LossScaler::is_at_minimum() const noexcept {
  return options_.dynamic && overflows_left_ == 1 &&
         scale_ == options_.min_scale;
}

void LossScaler::update(bool overflow) {
  if (options_.dynamic) adapt(overflow);
  ++steps_;
}

void LossScaler::adapt(bool overflow) {
  if (overflow) {
    if (is_at_minimum() && options_.at_minimum == AtMinimum::kStop)
      throw Error(
          ErrorCode::kNonFinite,
          fmt::format("the loss scale is at its minimum of {} and gradients "
                      "are still not finite",
                      options_.min_scale));
    if (overflows_left_ == 1)
      scale_ = std::max(scale_ / 2, options_.min_scale);
    else
      --overflows_left_;
    last_overflow_ = steps_;
  } else {
    if (options_.consecutive_hysteresis) overflows_left_ = options_.hysteresis;
    const std::int64_t stable = steps_ - last_overflow_ - 1;
    if (stable > 0 && stable % options_.window == 0) {
      overflows_left_ = options_.hysteresis;
      scale_ = std::min(scale_ * 2, options_.max_scale);
    }
  }
}

void LossScaler::save(StateDict& state) const {
  state.put_real("loss_scale", scale_);
  state.put_integer("loss_scale_overflows_left", overflows_left_);
  state.put_integer("loss_scale_steps", steps_);
  state.put_integer("loss_scale_last_overflow", last_overflow_);
}

// The present settings take precedence: if they exclude the saved scale, the
// nearest allowed scale is used.
void LossScaler::load(const StateDict& state) {
  const double scale = state.real("loss_scale");
  const std::int64_t left = state.integer("loss_scale_overflows_left");
  const std::int64_t steps = state.integer("loss_scale_steps");
  const std::int64_t last = state.integer("loss_scale_last_overflow");
  if (!is_positive(scale) || steps < 0 || steps > optim::kMostCount ||
      last >= steps || last < -1)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the saved loss scale {} at step {} contradicts "
                            "its last overflow at {}",
                            scale, steps, last));
  if (!options_.dynamic) return;
  scale_ = std::clamp(scale, options_.min_scale, options_.max_scale);
  overflows_left_ =
      std::clamp(left, std::min<std::int64_t>(1, options_.hysteresis),
                 options_.hysteresis);
  steps_ = steps;
  last_overflow_ = last;
}

}  // namespace thinwire::precision
