// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "exchange/exact_average.h"
#include "optim/gradient_agreement.h"
#include "optim/low_bit/gradients/warm_up_average.h"
#include "optim/low_bit/model.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// Groups that are never compressed (non_freeze). In a compressed step, their
/// gradients are sent exactly while the others are encoded.
class ExactGroups {
 public:
  explicit ExactGroups(LowBitModel& model) : model_(model) {}

  /// Sends the gradients. Collective, queued.
  void begin(View grads);
  /// Waits for the sums and uses them in Adam's step `number`. Each rank's
  /// gradients are multiplied by `grad_scale`.
  void finish(std::int64_t number, const StepInput& in, double grad_scale,
              StepMeter& step);

 private:
  LowBitModel& model_;
  std::vector<comm::Work> queued_;
};

/// Gradients of all ranks in one step. They are averaged, or clipped on each
/// rank. If a gradient is not finite, all ranks skip the step. Every step
/// begins here with its one scalar exchange.
class LocalGradients {
 public:
  explicit LocalGradients(LowBitModel& model);

  /// Performs the scalar exchange of a step. Returns the RMS of the ranks'
  /// norms, or nothing if a gradient was not finite and the step is skipped.
  /// `has_late` is whether an inactive element has a gradient on this rank.
  /// `is_unlike_early` is whether this rank has begun a different step early.
  /// Collective.
  [[nodiscard]] std::optional<double> agree_on_norm(
      const StepInput& in, bool has_late, StepMeter& step,
      bool is_unlike_early = false);
  /// Records the norms of an exact step, from which later ones are estimated.
  /// `rms_norm` comes from agree_on_norm(), `mean_norm` from the mean, and
  /// `counted_norm` from the mean without StepInput::uncounted.
  void remember(double rms_norm, double mean_norm, double counted_norm);
  /// Averages the gradients over the ranks in an exact step. Returns the arrays
  /// for the update rule, with clip * mean_i g_i, or nothing if a gradient was
  /// not finite. Collective.
  [[nodiscard]] std::optional<UpdateArrays> average(const StepInput& in,
                                                    StepMeter& step);
  /// Returns the factor for this rank's gradients before a compressed exchange,
  /// which includes clipping by the estimated norm of their mean. Returns
  /// nothing if a gradient was not finite. The arguments are those of
  /// agree_on_norm(). Collective.
  [[nodiscard]] std::optional<double> clip_by_estimate(const StepInput& in,
                                                       bool has_late,
                                                       StepMeter& step);
  /// Returns the factor for this rank's gradients before a step without an
  /// exchange, which includes clipping by their own norm. Returns nothing if
  /// this rank leaves the step out; all ranks do so if the report says that it
  /// was not applied. Ranks communicate only if they must skip steps together.
  [[nodiscard]] std::optional<double> clip_locally(const StepInput& in,
                                                   StepMeter& step);
  /// Performs EarlyGradients::reduce() before an exact step. Collective,
  /// queued.
  void begin_early(View grads, Range range);

  /// Perform EarlyGradients::measure() and forget().
  void measure_early(ConstView grads, Range range) {
    exact_.measure_early(grads, range);
  }
  void forget_early() noexcept { exact_.forget_early(); }

  /// Returns whether an inactive element has a gradient on any rank in this
  /// step.
  [[nodiscard]] bool any_late() const noexcept { return any_late_; }
  /// Returns the sums of squares of this rank's own gradients (kernels/norm.h).
  [[nodiscard]] std::span<const double> chunk_squares() const noexcept {
    return exact_.chunk_squares();
  }

  /// Returns the low-bit average of exact steps.
  [[nodiscard]] WarmUpAverage& few_bits() noexcept { return few_bits_; }
  [[nodiscard]] const WarmUpAverage& few_bits() const noexcept {
    return few_bits_;
  }

  /// Data that is kept from step to step.
  struct Memory {
    CalibratedNorm norm;
    LaggedNorm lagged;
    bool left_out_a_step = false;  // only on this rank, since the last exchange
    // Loss scale of the last step, which the next step is assumed to have.
    // Unknown after the load of a state without it.
    std::optional<double> loss_scale = 1;

    void add_to(State& state, bool lags) const;
  };
  Memory memory;
  /// Lists the data. A state may come from other ranks or hosts. Ranks that the
  /// state does not know have left out no step.
  void list(StateParts& parts);

 private:
  [[nodiscard]] Memory saved_memory(const StateDict& state) const;
  [[nodiscard]] bool skips(const StepInput& in) const;
  void give_up(StepMeter& step);
  [[nodiscard]] Agreement among_hosts(Agreement agreement) const;
  [[nodiscard]] double rms_of_workers(double rms_norm, double mean_norm) const;
  [[nodiscard]] int first_rank(bool own, StepMeter& step);
  [[nodiscard]] double estimate(double rms_norm) const;
  // Returns the estimated norm of the whole model if it has parameters outside
  // this optimizer.
  [[nodiscard]] std::optional<double> norm_of_whole(const StepInput& in,
                                                    double rms_norm) const;
  // Clips by the RMS norm `by`, unless the norm of the whole model is known.
  [[nodiscard]] double clip(double rms_norm, double by,
                            const std::optional<double>& whole,
                            StepReport& report) const;

  LowBitModel& model_;
  exchange::ExactAverage exact_;
  WarmUpAverage few_bits_;
  std::uint32_t number_;  // this optimizer's optimizer_number()
  bool any_late_ = false;
  bool any_unlike_early_ = false;
  FirstAgreements first_agreements_;
};

}  // namespace thinwire::optim
