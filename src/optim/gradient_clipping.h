// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "optim/exact_exchange.h"
#include "thinwire/core/state_dict.h"

namespace thinwire::optim {

/// What ranks know of each other's gradients after the one scalar exchange.
struct GradientAgreement {
  int nonfinite_rank = -1;  ///< The lowest; -1: all are finite.
  int left_out_rank = -1;   ///< The lowest that left out a local step; -1.
  double rms_norm = 0;      ///< a = sqrt(mean over ranks of ||g_i||^2).
};

/// `sums[r]` is rank r's sum of squares, negated if it left out a local step;
/// added in rank order.
[[nodiscard]] GradientAgreement agreement_on(const std::vector<double>& sums);

/// Collective: agreement_on() the ranks' sums, of which `own` is this rank's.
[[nodiscard]] GradientAgreement agree(comm::Communicator& comm, double own,
                                      StepMeter& meter);

/// min(1, max_norm / norm); 1 when max_norm is 0.
[[nodiscard]] double clip_factor(double norm, double max_norm) noexcept;

/// Estimates the norm of the averaged gradient where it is never formed. In
/// exact steps rho follows ||mean g|| / a; in compressed ones rho * a is the
/// estimate. a alone is up to sqrt(W) too large, so clipping by it shortens
/// most steps.
class CalibratedNorm {
 public:
  /// An exact step was taken.
  void measure(double mean_norm, double rms_norm) noexcept;
  [[nodiscard]] double estimate(double rms_norm) const noexcept {
    return ratio_ * rms_norm;
  }

  void save(StateDict& state) const;
  void load(const StateDict& state);

 private:
  double ratio_ = 1;
  bool measured_ = false;
};

}  // namespace thinwire::optim
