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

void ZeroOneSchedule::list(StateParts& parts) {
  const std::int64_t var_interval =
      parts.count({"var_interval"}, var_interval_);
  const std::int64_t local_interval =
      parts.count({"local_step_interval"}, local_interval_);
  if (var_interval < 1 || local_interval < 1)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("saved intervals must be >= 1, got var_interval "
                            "{} and local_step_interval {}",
                            var_interval, local_interval));
  kappa_.list(parts, kKappa);
  alpha_.list(parts, kAlpha);
  clipper_.list(parts, kClipper);
  parts.count({"var_counter"}, var_counter_);
  parts.count({"local_step_counter"}, local_counter_);
}

}  // namespace thinwire::optim
