// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/freeze/freeze_point.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "optim/saved_state.h"
#include "thinwire/core/error.h"
#include "thinwire/optim/run_length.h"

namespace thinwire::optim {

AutoFreeze::AutoFreeze(const FreezeOptions& o) : ratio_(o.ratio) {
  const auto part_of_total = [&](std::int64_t nth, std::int64_t otherwise) {
    return o.total_steps ? (*o.total_steps + nth - 1) / nth : otherwise;
  };
  const std::int64_t fifth = part_of_total(5, 100'000);
  earliest_ = std::max({o.lr_warmup_steps.value_or(0), part_of_total(10, 0),
                        std::min(o.min_step, fifth)});
  latest_ = std::max(o.max_step.value_or(fifth), earliest_);
}

bool AutoFreeze::observe(double norm) {
  norms_.push_back(norm);
  const auto step = static_cast<std::int64_t>(norms_.size());
  if (step >= latest_) return true;
  const std::int64_t window = std::max<std::int64_t>(50, step / 2);
  if (step < earliest_ || step <= window) return false;
  const double before = norms_[static_cast<std::size_t>(step - window - 1)];
  // Two norms of zero mean that there were no gradients yet, so nothing has
  // settled.
  return norm > 0 && before > 0 &&
         std::min(norm / before, before / norm) >= ratio_;
}

void AutoFreeze::list(StateParts& parts) {
  constexpr const char* kName = "exp_avg_sq_norms";
  const StateDict* const saved = parts.saved();
  parts.values(Axis::kFree, {.name = kName, .sign = Sign::kNotNegative}, norms_,
               saved != nullptr ? saved->array(kName).size() : 0);
}

void StagePlan::list(StateParts& parts, const char* key) {
  if (parts.saved() != nullptr && named_) {
    parts.set(step_, std::int64_t{own_});
    return;
  }
  const std::int64_t step =
      parts.integer({.name = key, .missing = own_}, step_);
  if (parts.saved() != nullptr && step < 1 && step != kAutoFreeze)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the state's {} must be >= 1, got {}", key, step));
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

namespace {

constexpr const char* kFreezeStep = "freeze_step";
constexpr const char* kFrozenAt = "frozen_at";
constexpr const char* kHeldUntil = "freeze_held_until";

}  // namespace

bool FreezePoint::is_last(std::int64_t step,
                          const std::function<double()>& norm,
                          const CompressedMomentum& momentum) {
  // Every exact step enters the history of the variance.
  const bool due =
      planned() == kAutoFreeze ? automatic_.observe(norm()) : step >= planned();
  if (!due || !model_.compresses()) return due;
  if (step < held_until_) return false;
  if (!gate_ || gate_({.step = step, .time_exchange = [&] {
                         return momentum.exchange.time_exchange();
                       }}))
    return true;
  held_until_ = step + std::max<std::int64_t>(1, step / 10);
  return false;
}

void FreezePoint::set_exact() {
  frozen_at_ = 0;
  held_until_ = 0;
}

// If no gate has delayed the freeze, the state is the same as in versions
// without gates.
std::int64_t FreezePoint::list(StateParts& parts) {
  const std::int64_t frozen_at = parts.count({kFrozenAt}, frozen_at_);
  if (parts.saved() != nullptr || held_until_ > 0)
    parts.count({.name = kHeldUntil, .missing = 0}, held_until_);
  plan_.list(parts, kFreezeStep);
  if (parts.saved() != nullptr)
    parts.set(begins_, parts.saved()->has_scalar(kBegins));
  automatic_.list(parts);
  return frozen_at;
}

void FreezePoint::begin_in(StateDict& state) {
  state.put_integer(kFrozenAt, 0);
  state.put("exp_avg_sq_norms", std::vector<double>());
  state.put_integer(kBegins, 1);
}

std::string FreezePoint::note_of_end(std::int64_t steps) const {
  return optim::note_of_end(kFreezeStep, planned(), steps);
}

std::string FreezePoint::note_of_return(std::int64_t steps,
                                        bool variance_was_dropped) const {
  return optim::note_of_return(kFreezeStep, planned(), steps,
                               variance_was_dropped);
}

}  // namespace thinwire::optim
