// SPDX-License-Identifier: Apache-2.0
#include "optim/zero_one_schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "optim/saved_state.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

namespace {

constexpr const char* kKappa = "var_update_scaler";
constexpr const char* kAlpha = "local_step_scaler";
constexpr const char* kClipper = "local_step_clipper";

}  // namespace

void ZeroOneSchedule::variance_updated() {
  if (++var_counter_ < kappa_.step()) return;
  var_counter_ = 0;
  var_interval_ *= 2;
}

void ZeroOneSchedule::local_step_taken() {
  if (++local_counter_ < alpha_.step()) return;
  local_counter_ = 0;
  local_interval_ = std::min(clipper_.step(), local_interval_ * 2);
}

std::string ZeroOneSchedule::describe() const {
  return fmt::format(
      "var_interval {} var_counter {} local_step_interval {} "
      "local_step_counter {}",
      var_interval_, var_counter_, local_interval_, local_counter_);
}

void ZeroOneSchedule::save(StateDict& state) const {
  state.put_integer("var_interval", var_interval_);
  state.put_integer("var_counter", var_counter_);
  state.put_integer("local_step_interval", local_interval_);
  state.put_integer("local_step_counter", local_counter_);
  kappa_.save(state, kKappa);
  alpha_.save(state, kAlpha);
  clipper_.save(state, kClipper);
}

void ZeroOneSchedule::load(const StateDict& state) {
  const std::int64_t var_interval = saved_count(state, "var_interval");
  const std::int64_t local_interval = saved_count(state, "local_step_interval");
  if (var_interval < 1 || local_interval < 1)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("saved intervals must be >= 1, got var_interval "
                            "{} and local_step_interval {}",
                            var_interval, local_interval));
  kappa_ = kappa_.after(state, kKappa);
  alpha_ = alpha_.after(state, kAlpha);
  clipper_ = clipper_.after(state, kClipper);
  const std::int64_t var_counter = saved_count(state, "var_counter");
  local_counter_ = saved_count(state, "local_step_counter");
  var_counter_ = var_counter;
  var_interval_ = var_interval;
  local_interval_ = local_interval;
}

}  // namespace thinwire::optim
