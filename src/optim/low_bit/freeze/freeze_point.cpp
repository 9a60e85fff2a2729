// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/freeze/freeze_point.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "optim/saved_state.h"

namespace thinwire::optim {

namespace {

constexpr const char* kFreezeStep = "freeze_step";
constexpr const char* kFrozenAt = "frozen_at";
constexpr const char* kHeldUntil = "freeze_held_until";
constexpr const char* kBegins = "first_stage_begins";  // in no saved state

}  // namespace

bool FreezePoint::is_last(std::int64_t step,
                          const std::function<double()>& norm,
                          const CompressedMomentum& momentum) {
  // The history of the variance has every exact step.
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

void FreezePoint::add_to(State& state) const {
  state.common.put_integer(kFrozenAt, frozen_at_);
  plan_.save(state.common, kFreezeStep);
  // A run that was never held has the state that it had before there were
  // gates.
  if (held_until_ > 0) state.common.put_integer(kHeldUntil, held_until_);
  automatic_.add_to(state);
}

void FreezePoint::begin_in(StateDict& state) {
  state.put_integer(kFrozenAt, 0);
  state.put("exp_avg_sq_norms", std::vector<double>());
  state.put_integer(kBegins, 1);
}

FreezePoint::Saved FreezePoint::read(const StateDict& state) const {
  Saved saved{.frozen_at = saved_count(state, kFrozenAt),
              .held_until = state.has_scalar(kHeldUntil)
                                ? saved_count(state, kHeldUntil)
                                : 0,
              .plan = plan_.after(state, kFreezeStep),
              .begins = state.has_scalar(kBegins),
              .automatic = automatic_};
  saved.automatic.load(state);
  return saved;
}

void FreezePoint::restore(Saved&& saved) {
  frozen_at_ = saved.frozen_at;
  held_until_ = saved.held_until;
  plan_ = saved.plan;
  begins_ = saved.begins;
  automatic_ = std::move(saved.automatic);
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
