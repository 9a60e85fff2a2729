// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "thinwire/core/state_dict.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// Decides when the variance has settled enough to be frozen: its
/// bias-corrected L1 norm and that of half of the steps so far ago, at least
/// 50, are within a ratio. Over a shorter window a running mean hardly moves.
/// All ranks see the same norms, since exact steps leave the same variance
/// everywhere.
class AutoFreeze {
 public:
  struct Options {
    std::int64_t earliest = 100;    ///< Not before this step ...
    std::int64_t latest = 100'000;  ///< ... and at the latest at this one.
    double ratio = 0.85;
  };

  AutoFreeze() = default;
  explicit AutoFreeze(const Options& options) : options_(options) {}

  /// Step 1, 2, ...: `norm` is its bias-corrected L1 norm of the variance. True
  /// if this step, still exact, is the last one.
  [[nodiscard]] bool observe(double norm);

  void add_to(State& state) const;
  void load(const StateDict& state);

 private:
  Options options_;
  std::vector<double> norms_;  // of steps 1, 2, ...
};

}  // namespace thinwire::optim
