// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/freeze/freeze_hold.h"

#include <algorithm>

#include "optim/saved_state.h"

namespace thinwire::optim {

namespace {

constexpr const char* kUntil = "freeze_held_until";

}  // namespace

bool FreezeHold::lets_end(bool due, std::int64_t step,
                          const MomentumExchange& exchange) {
  if (!due || step < until_) return false;
  if (!gate_) return true;
  if (gate_({.step = step,
             .time_exchange = [&] { return exchange.time_exchange(); }}))
    return true;
  until_ = step + std::max<std::int64_t>(1, step / 10);
  return false;
}

// A run that was never held has the state that it had before there were gates.
void FreezeHold::save(StateDict& state) const {
  if (until_ > 0) state.put_integer(kUntil, until_);
}

std::int64_t FreezeHold::load(const StateDict& state) {
  return state.has_scalar(kUntil) ? saved_count(state, kUntil) : 0;
}

}  // namespace thinwire::optim
