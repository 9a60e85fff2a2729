// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "optim/step_pieces.h"
#include "thinwire/core/state_dict.h"

namespace thinwire::optim {

/// A rank's summary of its gradients in the scalar exchange of a step.
struct GradientSummary {
  double squares = 0;  ///< Sum of squares; not finite if a gradient is not.
  std::uint32_t optimizer = 0;     ///< The number from optimizer_number().
  std::uint32_t left_out : 1 = 0;  ///< This rank left out a local step.
  std::uint32_t late : 1 = 0;      ///< An inactive element has a gradient here.
  /// Whether this step differs from the step that this rank has begun early.
  std::uint32_t unlike_early : 1 = 0;
  std::uint32_t masks : 29 = 0;  ///< The masks' Masks::fingerprint().
};

/// Common knowledge of all ranks about their gradients after the scalar
/// exchange.
struct Agreement {
  int nonfinite_rank = -1;  ///< Lowest rank with a non-finite gradient, or -1.
  int left_out_rank = -1;   ///< Lowest rank that left out a local step, or -1.
  bool any_late = false;  ///< An inactive element has a gradient on some rank.
  bool any_unlike_early = false;  ///< Some rank has begun another step early.
  double squares = 0;             ///< Sum of ||g_i||^2 over the ranks.
  double rms_norm = 0;            ///< a = sqrt(mean over ranks of ||g_i||^2).
  /// Whether there are several ranks, whose squares are all equal, finite and >
  /// 0.
  bool equal_norms = false;
};

/// Combines the ranks' summaries. Squares are added in rank order. Throws
/// Error(kFailedPrecondition) if the ranks step different optimizers, whose
/// gradients would be averaged with each other. Throws Error(kInvalidArgument)
/// if ranks mask different elements.
[[nodiscard]] Agreement agreement_on(std::span<const GradientSummary> ranks);

/// Exchanges summaries and returns agreement_on() them. `own` is this rank's.
/// Collective.
[[nodiscard]] Agreement agree(comm::Communicator& comm,
                              const GradientSummary& own, StepMeter& meter);

/// Returns a number for the optimizer that all ranks are about to construct. No
/// other optimizer of this communicator has it.
[[nodiscard]] std::uint32_t optimizer_number(const comm::Communicator& comm);

/// Reports gradients_equal for the first two agreements only, because later
/// equality is a coincidence.
class FirstAgreements {
 public:
  void report(const Agreement& agreement, StepReport& report) noexcept {
    report.gradients_equal = seen_ < 2 && agreement.equal_norms;
    if (seen_ < 2) ++seen_;
  }

 private:
  int seen_ = 0;
};

/// Returns min(1, max_norm / norm), or 1 if max_norm is 0.
[[nodiscard]] double clip_factor(double norm, double max_norm) noexcept;

/// Estimates the norm of the averaged gradient in steps that do not compute the
/// average. Exact steps measure rho = ||mean g|| / a; compressed steps estimate
/// the norm as rho * a. a alone is up to sqrt(W)
/// times too large, so that clipping by it would shorten most steps.
class CalibratedNorm {
 public:
  /// Updates rho after an exact step.
  void measure(double mean_norm, double rms_norm) noexcept;
  [[nodiscard]] double estimate(double rms_norm) const noexcept {
    return ratio_ * rms_norm;
  }

  void save(StateDict& state) const;
  void load(const StateDict& state);
  /// Converts a measurement of `from` ranks to `to` ranks with the same samples
  /// per step. For a gradient of signal S and a batch whose noise is x S:
  ///  rho^2 = (1 + x) / (1 + ranks x).
  /// A single rank knows its norm exactly, which does not help with several
  /// ranks.
  void rescale(std::int64_t from, std::int64_t to) noexcept;

 private:
  double ratio_ = 1;
  bool measured_ = false;
};

/// The RMS norm with which compressed steps clip
/// (ExchangeOptions::lagged_clipping). It follows the previous steps' norms. A
/// spike can at most double it, so that the next step is not clipped by the
/// spike.
class LaggedNorm {
 public:
  /// Sets the norm after an exact step.
  void begin(double rms_norm) noexcept { reference_ = rms_norm; }
  /// Records a compressed step's norm and returns the norm with which that step
  /// is clipped. If no norm is known, any step counts as a spike.
  [[nodiscard]] double take(double rms_norm) noexcept;

  void save(StateDict& state) const;
  /// Accepts states of runs without lagged clipping.
  void load(const StateDict& state);
  /// Changes the norm with the ratio, so that the resulting estimate stays the
  /// same.
  void rescale(const CalibratedNorm& from, const CalibratedNorm& to) noexcept;

 private:
  double reference_ = 0;
};

}  // namespace thinwire::optim
