// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "thinwire/core/state_dict.h"
#include "thinwire/optim/freeze_options.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// Decides when the variance has settled enough to be frozen: its
/// bias-corrected L1 norm and that of half of the steps so far ago, at least
/// 50, are within a ratio. Over a shorter window a running mean hardly moves.
/// All ranks see the same norms, since exact steps leave the same variance
/// everywhere.
class AutoFreeze {
 public:
  explicit AutoFreeze(const FreezeOptions& options = {});

  /// Step 1, 2, ...: `norm` is its bias-corrected L1 norm of the variance. True
  /// if this step, still exact, is the last one.
  [[nodiscard]] bool observe(double norm);

  void add_to(State& state) const;
  void load(const StateDict& state);

 private:
  std::int64_t earliest_;  // not before this step
  std::int64_t latest_;    // at this one at the latest
  double ratio_;
  std::vector<double> norms_;  // of steps 1, 2, ...
};

}  // namespace thinwire::optim
