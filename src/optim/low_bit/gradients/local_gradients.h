// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>

#include "exchange/exact_average.h"
#include "optim/gradient_agreement.h"
#include "optim/low_bit/gradients/low_bit_average.h"
#include "optim/low_bit/model.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// The ranks' gradients of one step: averaged, or clipped where they are, or
/// the step is skipped on all ranks because one was not finite. Every step
/// begins here, with the one scalar exchange that it has.
class LocalGradients {
 public:
  explicit LocalGradients(LowBitModel& model);

  /// Collective, the one scalar exchange of a step: RMS of the ranks' norms, or
  /// nothing if one was not finite and the step is skipped. `has_late`: a late
  /// element has a gradient here; `is_unlike_early`: this rank has begun
  /// another step than this.
  [[nodiscard]] std::optional<double> agree_on_norm(
      const StepInput& in, bool has_late, StepMeter& step,
      bool is_unlike_early = false);
  /// After an exact step: what the norms of later ones are estimated by.
  /// `rms_norm` is agree_on_norm()'s, `mean_norm` that of the mean.
  void remember(double rms_norm, double mean_norm);
  /// Collective, an exact step: averages the gradients over the ranks. Returns
  /// what the update rule gets, clip * mean_i g_i, or nothing if one was not
  /// finite.
  [[nodiscard]] std::optional<UpdateArrays> average(const StepInput& in,
                                                    StepMeter& step);
  /// Collective; before a compressed exchange: what to multiply this rank's own
  /// gradients by, clipped by the estimated norm of their mean, or nothing if
  /// one was not finite. `has_late`: a late element has a gradient here.
  /// `is_unlike_early`: this rank has begun another step than this.
  [[nodiscard]] std::optional<double> clip_by_estimate(
      const StepInput& in, bool has_late, StepMeter& step,
      bool is_unlike_early = false);
  /// What the next one returns, if its norm is no spike: known before.
  [[nodiscard]] double scale_by_lag(double loss_scale) const;
  /// The same by this rank's own norm, before a step without an exchange; ranks
  /// tell each other of gradients that are not finite only if they are to skip
  /// together. Nothing: this rank leaves the step out; all do if it was not
  /// applied.
  [[nodiscard]] std::optional<double> clip_locally(const StepInput& in,
                                                   StepMeter& step);
  /// Collective, queued: as EarlyGradients::reduce(), before an exact step.
  void begin_early(View grads, Range range);

  /// As EarlyGradients::measure() and forget().
  void measure_early(ConstView grads, Range range) {
    exact_.measure_early(grads, range);
  }
  void forget_early() noexcept { exact_.forget_early(); }

  /// On some rank a late element has a gradient in this step.
  [[nodiscard]] bool any_late() const noexcept { return any_late_; }
  [[nodiscard]] bool any_unlike_early() const noexcept {
    return any_unlike_early_;
  }
  /// Sums of squares of this rank's own gradients (kernels/norm.h).
  [[nodiscard]] std::span<const double> chunk_squares() const noexcept {
    return exact_.chunk_squares();
  }

  /// That of exact steps, where it is over few bits.
  [[nodiscard]] LowBitAverage& few_bits() noexcept { return few_bits_; }
  [[nodiscard]] const LowBitAverage& few_bits() const noexcept {
    return few_bits_;
  }

  /// What outlives a step.
  struct Memory {
    CalibratedNorm norm;
    LaggedNorm lagged;
    bool left_out_a_step = false;  // this rank alone, since the last exchange

    void add_to(State& state, bool lags) const;
  };
  Memory memory;
  /// Of a state, which may be of other ranks or hosts: a rank that was not
  /// there has left out nothing.
  [[nodiscard]] Memory saved_memory(const StateDict& state) const;

 private:
  [[nodiscard]] bool skips(const StepInput& in) const;
  void give_up(StepMeter& step);
  [[nodiscard]] Agreement among_hosts(Agreement agreement) const;
  [[nodiscard]] double rms_of_workers(double rms_norm, double mean_norm) const;
  [[nodiscard]] int first_rank(bool own, StepMeter& step);
  [[nodiscard]] double estimate(double rms_norm) const;
  // Estimated too, where the model has other parameters.
  [[nodiscard]] std::optional<double> norm_of_whole(const StepInput& in,
                                                    double rms_norm) const;
  // `by`: the RMS norm to clip by, unless the whole model's norm is known.
  [[nodiscard]] double clip(double rms_norm, double by,
                            const std::optional<double>& whole,
                            StepReport& report) const;

  LowBitModel& model_;
  exchange::ExactAverage exact_;
  LowBitAverage few_bits_;
  std::uint32_t number_;  // of this optimizer, see optimizer_number()
  bool any_late_ = false;
  bool any_unlike_early_ = false;
  FirstAgreements first_agreements_;
};

}  // namespace thinwire::optim
