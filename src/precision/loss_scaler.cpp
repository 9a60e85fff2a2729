// SPDX-License-Identifier: Apache-2.0
#include "thinwire/precision/loss_scaler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/require.h"
#include "thinwire/core/error.h"

namespace thinwire::precision {

namespace {

bool is_positive(double value) { return std::isfinite(value) && value > 0; }

}  // namespace

void LossScalerOptions::validate() const {
  require(is_positive(initial_scale), "initial_scale", "finite and > 0",
          initial_scale);
  if (!dynamic) return;
  const bool reference = semantics == optim::Semantics::kDeepSpeed;
  require(window >= 1, "window", ">= 1", window);
  const std::int64_t least = reference ? 0 : 1;
  require(hysteresis >= least, "hysteresis", fmt::format(">= {}", least),
          hysteresis);
  require(is_positive(min_scale), "min_scale", "finite and > 0", min_scale);
  require(reference || min_scale <= initial_scale, "min_scale",
          fmt::format("at most initial_scale = {}", initial_scale), min_scale);
  const double largest = std::max(min_scale, initial_scale);
  require(
      max_scale >= largest, "max_scale",
      fmt::format("at least {}, which initial_scale or min_scale is", largest),
      max_scale);
}

LossScalerOptions zero_loss_scaler(LossScalerOptions options) {
  options.max_scale = std::numeric_limits<double>::infinity();
  options.semantics = optim::Semantics::kDeepSpeed;
  return options;
}

LossScalerOptions wrapper_loss_scaler(LossScalerOptions options) {
  options.hysteresis = 1;
  options.consecutive_hysteresis = false;
  options.at_minimum = AtMinimum::kHold;
  return zero_loss_scaler(options);
}

LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(options),
      scale_(options.initial_scale),
      overflows_left_(options.hysteresis) {
  options_.validate();
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

// The settings of now hold, whatever was saved: a scale that they exclude
// becomes the nearest that they allow.
void LossScaler::load(const StateDict& state) {
  const double scale = state.real("loss_scale");
  const std::int64_t left = state.integer("loss_scale_overflows_left");
  const std::int64_t steps = state.integer("loss_scale_steps");
  const std::int64_t last = state.integer("loss_scale_last_overflow");
  if (!is_positive(scale) || steps < 0 || last >= steps || last < -1)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("saved loss scale {} at step {} with its last "
                            "overflow at {} is impossible",
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
