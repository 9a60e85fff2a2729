// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "optim/step_pieces.h"
#include "thinwire/core/state_dict.h"

namespace thinwire::optim {

/// A rank's summary of its gradients in the scalar exchange of a step.
struct GradientSummary {
  double squares = 0;  ///< Their sum of squares; not finite if one of them is.
  std::uint32_t optimizer = 0;     ///< See optimizer_number().
  std::uint32_t left_out : 1 = 0;  ///< This rank left out a local step.
  std::uint32_t late : 1 = 0;      ///< An inactive element has a gradient here.
  /// This step differs from the one that this rank has begun early.
  std::uint32_t unlike_early : 1 = 0;
  std::uint32_t masks : 29 = 0;  ///< See Masks::fingerprint().
};

/// The ranks' common knowledge of their gradients after that exchange.
struct Agreement {
  int nonfinite_rank = -1;  ///< The lowest; -1: all are finite.
  int left_out_rank = -1;   ///< The lowest that left out a local step; -1.
  bool any_late = false;  ///< Some rank has a gradient of an inactive element.
  bool any_unlike_early = false;  ///< Some rank has begun another step early.
  double squares = 0;             ///< Sum over ranks of ||g_i||^2.
  double rms_norm = 0;            ///< a = sqrt(mean over ranks of ||g_i||^2).
  /// There are several ranks, and all have the same squares, finite and > 0.
  bool equal_norms = false;
};

/// Squares are added in rank order. Throws Error(kFailedPrecondition) where
/// ranks take steps of different optimizers, whose gradients would be averaged
/// with each other's, and Error(kInvalidArgument) where they mask different
/// elements.
[[nodiscard]] Agreement agreement_on(std::span<const GradientSummary> ranks);

/// Collective: agreement_on() what each rank says, of which `own` is this
/// rank's.
[[nodiscard]] Agreement agree(comm::Communicator& comm,
                              const GradientSummary& own, StepMeter& meter);

/// A number of the optimizer object that is about to be constructed on all
/// ranks, which no other object of this communicator has.
[[nodiscard]] std::uint32_t optimizer_number(const comm::Communicator& comm);

/// Reports gradients_equal of the first two agreements after construction:
/// later ones would find a coincidence only.
class FirstAgreements {
 public:
  void report(const Agreement& agreement, StepReport& report) noexcept {
    report.gradients_equal = seen_ < 2 && agreement.equal_norms;
    if (seen_ < 2) ++seen_;
  }

 private:
  int seen_ = 0;
};

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
  /// Converts the measurement of `from` ranks to `to` ranks with the same
  /// samples per step. For a gradient of signal S and a batch's noise x S,
  ///   rho^2 = (1 + x) / (1 + ranks x).
  /// A single rank knows its norm, from which nothing follows for several
  /// ranks.
  void rescale(std::int64_t from, std::int64_t to) noexcept;

 private:
  double ratio_ = 1;
  bool measured_ = false;
};

/// The RMS norm by which a step can clip before it knows its own: that of the
/// steps before (ExchangeOptions::lagged_clipping). One spike cannot double it
/// more than once, so the step after it is not clipped by the spike.
class LaggedNorm {
 public:
  /// An exact step was taken.
  void begin(double rms_norm) noexcept { reference_ = rms_norm; }
  /// Returns the norm by which the next compressed step is clipped, unless it
  /// is a spike. Returns 0 if the norm is unknown, so that any step counts as a
  /// spike.
  [[nodiscard]] double reference() const noexcept { return reference_; }
  /// Takes a compressed step of this norm, and returns the norm by which it is
  /// clipped.
  [[nodiscard]] double take(double rms_norm) noexcept;

  void save(StateDict& state) const;
  /// A state may be of a run that did without.
  void load(const StateDict& state);
  /// The estimate that goes with it stays what it was, by another ratio.
  void rescale(const CalibratedNorm& from, const CalibratedNorm& to) noexcept;

 private:
  double reference_ = 0;
};

}  // namespace thinwire::optim
