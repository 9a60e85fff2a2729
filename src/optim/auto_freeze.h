// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "thinwire/core/state_dict.h"

namespace thinwire::optim {

/// Decides when the variance has settled enough to be frozen: its
/// bias-corrected L1 norm and that of a window of steps ago are within a ratio.
/// All ranks see the same norms, since exact steps leave the same variance
/// everywhere.
class AutoFreeze {
 public:
  struct Options {
    double beta1 = 0.9;             ///< The largest of any group that freezes.
    std::int64_t earliest = 100;    ///< Not before this step ...
    std::int64_t latest = 100'000;  ///< ... and at the latest at this one.
    double ratio = 0.90;
  };

  AutoFreeze() = default;
  explicit AutoFreeze(const Options& options) : options_(options) {}

  /// Step 1, 2, ...: `norm` is its bias-corrected L1 norm of the variance. True
  /// if this step, still exact, is the last one.
  [[nodiscard]] bool observe(double norm);

  void save(StateDict& state) const;
  void load(const StateDict& state);

 private:
  Options options_;
  std::vector<double> norms_;  // of steps 1, 2, ...
};

}  // namespace thinwire::optim
