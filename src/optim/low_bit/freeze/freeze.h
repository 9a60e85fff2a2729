// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "optim/low_bit/denominator/denominator.h"
#include "optim/low_bit/freeze/freeze_point.h"
#include "optim/low_bit/options.h"
#include "thinwire/optim/freeze_options.h"
#include "thinwire/optim/low_bit_optimizer.h"

namespace thinwire::optim {

/// Returns a line with the fields.
[[nodiscard]] std::string describe(const FreezeOptions& options);

/// The end of the warm-up stage: the variance is frozen and becomes the
/// denominator of all later, compressed steps.
class Freeze final : public FreezePoint {
 public:
  using FreezePoint::FreezePoint;

  [[nodiscard]] Phase phase() const {
    return is_frozen() ? Phase::kCompressed : Phase::kExact;
  }

  /// Returns whether exact step `step` was the last. Call it after every exact
  /// step. Collective if it asks the gate.
  [[nodiscard]] bool ends_at(std::int64_t step,
                             const CompressedMomentum& momentum);
  /// Computes d = max(sqrt(v / (1 - beta2^step)) + eps, floor). Keeps the
  /// variance besides d, or releases it.
  void freeze(std::int64_t step, bool keeps_variance, Denominator& denominator);

  [[nodiscard]] std::string describe() const;
  /// Returns whether the variance is frozen in the state.
  bool list(StateParts& parts, Denominator& denominator);

  /// Returns to exact steps after step `steps` and returns a note on it.
  /// Variance, momentum and participation become those of exact steps. If the
  /// variance was kept, it is multiplied by `kept_scale` of its group, which
  /// removes its bias. Otherwise it is computed from the denominators.
  [[nodiscard]] std::string return_to_exact(
      std::int64_t steps, Denominator& denominator,
      const std::function<float(std::size_t group)>& kept_scale = {});
};

}  // namespace thinwire::optim
