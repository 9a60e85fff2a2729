// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/freeze/auto_freeze.h"

#include <algorithm>

#include "optim/saved_state.h"

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
  // Two zeros: nothing has a gradient yet, so nothing has settled.
  return norm > 0 && before > 0 &&
         std::min(norm / before, before / norm) >= ratio_;
}

void AutoFreeze::add_to(State& state) const {
  state.add_free("exp_avg_sq_norms", norms_);
}

void AutoFreeze::load(const StateDict& state) {
  constexpr const char* kName = "exp_avg_sq_norms";
  norms_ = saved_values<double>(state, kName, state.array(kName).size(),
                                Sign::kNotNegative);
}

}  // namespace thinwire::optim
