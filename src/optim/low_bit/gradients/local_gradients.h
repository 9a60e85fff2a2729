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

/// Groups that are never compressed (non_freeze). In a compressed step their
/// gradients travel exactly, while the others are encoded.
class ExactGroups {
 public:
  explicit ExactGroups(LowBitModel& model) : model_(model) {}

  /// Sends the gradients. Collective, queued.
  void begin(View grads);
  /// Waits for the sums and takes Adam's step `number` with them. Each rank's
  /// gradients are multiplied by `grad_scale`.
  void finish(std::int64_t number, const StepInput& in, double grad_scale,
              StepMeter& step);

 private:
  LowBitModel& model_;
  std::vector<comm::Work> queued_;
};

/// The ranks' gradients of one step. They are averaged, or clipped on each
/// rank, or the step is skipped on all ranks because a gradient was not finite.
/// Every step begins here, with its one scalar exchange.
class LocalGradients {
 public:
  explicit LocalGradients(LowBitModel& model);

  /// Performs the one scalar exchange of a step. Returns the RMS of the ranks'
  /// norms, or nothing if a gradient was not finite and the step is skipped.
  /// `has_late` says that an inactive element has a gradient here,
  /// `is_unlike_early` that this rank has begun another step than this.
  /// Collective.
  [[nodiscard]] std::optional<double> agree_on_norm(
      const StepInput& in, bool has_late, StepMeter& step,
      bool is_unlike_early = false);
  /// Remembers the norms of an exact step, by which those of later ones are
  /// estimated: `rms_norm` of agree_on_norm(), `mean_norm` of the mean, and
  /// `counted_norm` of the mean without StepInput::uncounted.
  void remember(double rms_norm, double mean_norm, double counted_norm);
  /// Averages the gradients over the ranks in an exact step. Returns the arrays
  /// for the update rule, with clip * mean_i g_i, or nothing if a gradient was
  /// not finite. Collective.
  [[nodiscard]] std::optional<UpdateArrays> average(const StepInput& in,
                                                    StepMeter& step);
  /// Returns the factor on this rank's own gradients before a compressed
  /// exchange, clipped by the estimated norm of their mean, or nothing if a
  /// gradient was not finite. The arguments are those of agree_on_norm().
  /// Collective.
  [[nodiscard]] std::optional<double> clip_by_estimate(
      const StepInput& in, bool has_late, StepMeter& step,
      bool is_unlike_early = false);
  /// Returns the factor that the next clip_by_estimate() will return with this
  /// loss scale, unless its norm is a spike.
  [[nodiscard]] double scale_by_lag(double loss_scale) const;
  /// Returns the factor on this rank's own gradients before a step without an
  /// exchange, clipped by their own norm. Ranks exchange whether a gradient is
  /// not finite only if they are to skip together. Returns nothing if this rank
  /// leaves the step out; all ranks do if it was not applied.
  [[nodiscard]] std::optional<double> clip_locally(const StepInput& in,
                                                   StepMeter& step);
  /// Averages as EarlyGradients::reduce() does, before an exact step.
  /// Collective, queued.
  void begin_early(View grads, Range range);

  /// Do what EarlyGradients::measure() and forget() do.
  void measure_early(ConstView grads, Range range) {
    exact_.measure_early(grads, range);
  }
  void forget_early() noexcept { exact_.forget_early(); }

  /// Returns whether an inactive element has a gradient on some rank in this
  /// step.
  [[nodiscard]] bool any_late() const noexcept { return any_late_; }
  [[nodiscard]] bool any_unlike_early() const noexcept {
    return any_unlike_early_;
  }
  /// Returns the sums of squares of this rank's own gradients (kernels/norm.h).
  [[nodiscard]] std::span<const double> chunk_squares() const noexcept {
    return exact_.chunk_squares();
  }

  /// Returns the low-bit average of exact steps.
  [[nodiscard]] WarmUpAverage& few_bits() noexcept { return few_bits_; }
  [[nodiscard]] const WarmUpAverage& few_bits() const noexcept {
    return few_bits_;
  }

  /// The memory from step to step.
  struct Memory {
    CalibratedNorm norm;
    LaggedNorm lagged;
    bool left_out_a_step = false;  // this rank alone, since the last exchange
    // The last step's loss scale, which the next one is expected to have. It is
    // unknown after the load of a state that was saved without it.
    std::optional<double> loss_scale = 1;

    void add_to(State& state, bool lags) const;
  };
  Memory memory;
  /// Lists the memory. A saved state may be of other ranks or hosts. A rank
  /// that it does not know has left out nothing.
  void list(StateParts& parts);

 private:
  [[nodiscard]] Memory saved_memory(const StateDict& state) const;
  [[nodiscard]] bool skips(const StepInput& in) const;
  void give_up(StepMeter& step);
  [[nodiscard]] Agreement among_hosts(Agreement agreement) const;
  [[nodiscard]] double rms_of_workers(double rms_norm, double mean_norm) const;
  [[nodiscard]] int first_rank(bool own, StepMeter& step);
  [[nodiscard]] double estimate(double rms_norm) const;
  // Returns the estimated norm of the whole model, if it has other parameters.
  [[nodiscard]] std::optional<double> norm_of_whole(const StepInput& in,
                                                    double rms_norm) const;
  // Clips by the RMS norm `by`, unless the whole model's norm is known.
  [[nodiscard]] double clip(double rms_norm, double by,
                            const std::optional<double>& whole,
                            StepReport& report) const;

  LowBitModel& model_;
  exchange::ExactAverage exact_;
  WarmUpAverage few_bits_;
  std::uint32_t number_;  // of this optimizer, see optimizer_number()
  bool any_late_ = false;
  bool any_unlike_early_ = false;
  FirstAgreements first_agreements_;
};

}  // namespace thinwire::optim
