// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/freeze/stage_plan.h"

#include <fmt/format.h>

#include "thinwire/core/error.h"
#include "thinwire/optim/run_length.h"

namespace thinwire::optim {

StagePlan StagePlan::after(const StateDict& state, const char* key) const {
  StagePlan plan = *this;
  plan.step_ = own_;
  if (named_ || !state.has_scalar(key)) return plan;
  plan.step_ = state.integer(key);
  if (plan.step_ < 1 && plan.step_ != kAutoFreeze)
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("the state's {} must be >= 1, got {}", key, plan.step_));
  return plan;
}

bool StagePlan::names_later(std::int64_t steps) const {
  return named_ && *named_ != kAutoFreeze && steps < *named_;
}

bool StagePlan::names_passed(std::int64_t steps) const {
  return named_ && *named_ != kAutoFreeze && steps >= *named_;
}

std::string note_of_return(std::string_view option, std::int64_t planned,
                           std::int64_t steps, bool variance_was_dropped) {
  return fmt::format(
      "{} is {} and lies ahead of step {} of the state, which was past its "
      "own: "
      "the first stage goes on{}",
      option, planned, steps,
      variance_was_dropped
          ? "; the state has no variance, so it is what its denominators say"
          : "");
}

std::string note_of_end(std::string_view option, std::int64_t planned,
                        std::int64_t steps) {
  return fmt::format(
      "{} is {} and step {} of the state is not before it, although the state "
      "was in its first stage: that ends now",
      option, planned, steps);
}

}  // namespace thinwire::optim
