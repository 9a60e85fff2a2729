// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "optim/low_bit/momentum/momentum_exchange.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::optim {

/// Decides whether a freeze that is due takes place: FreezeStage::set_gate().
class FreezeHold {
 public:
  void set_gate(FreezeGate gate) { gate_ = std::move(gate); }

  /// Returns, after an exact step, whether an exact stage that is `due` to end
  /// does. Collective, on several ranks.
  [[nodiscard]] bool lets_end(bool due, std::int64_t step,
                              const MomentumExchange& exchange);

  // ---- state: the step before which nobody is asked again
  [[nodiscard]] std::int64_t until() const { return until_; }
  void hold_until(std::int64_t step) { until_ = step; }
  void save(StateDict& state) const;
  [[nodiscard]] static std::int64_t load(const StateDict& state);

 private:
  FreezeGate gate_;
  std::int64_t until_ = 0;
};

}  // namespace thinwire::optim
