// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "exchange/ready_ranges.h"
#include "optim/low_bit/model.h"
#include "optim/low_bit/restored_residuals.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/exchange/quantized_all_reduce.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// The average of gradients over few bits in exact steps
/// (FreezeOptions::warmup_bits). Gradients without their loss scale travel in 4
/// or 8 bits each way, and what rounding takes is sent later. Groups that are
/// never compressed travel exactly. A group of one has nobody to average with.
class LowBitAverage {
 public:
  explicit LowBitAverage(LowBitModel& model);

  /// Whether the next exact step averages this way.
  [[nodiscard]] bool is_on() const {
    return bits_ != 0 && (model_.compresses() || !restored_.empty());
  }
  /// 0: exactly.
  [[nodiscard]] int bits() const { return bits_; }

  // ---- before the step; flat only
  /// Collective, queued: elements `range` of its gradients are there. Encodes
  /// every bucket that is complete, with the loss scale of the step before.
  void begin_early(View grads, Range range);
  [[nodiscard]] bool has_begun() const {
    return exchange_ != nullptr && exchange_->has_begun();
  }

  // ---- the step
  /// Whether what has begun is of another loss scale than this step's, which
  /// begin_early() takes from now on.
  [[nodiscard]] bool was_wrong(const StepInput& in);
  /// Collective: the average in fp32, in place of fp32 gradients.
  /// `begins_anew`: what has begun was wrong on some rank.
  [[nodiscard]] View average(const StepInput& in, bool begins_anew,
                             StepMeter& step);
  /// The step is taken, with gradients clipped by `factor`.
  void clipped_by(double factor) { clip_ = factor; }
  /// Gives up what has begun, and with it the residuals that it has changed.
  void abandon() noexcept;
  /// Sets the residuals to 0 for a step that is skipped, begun or not.
  void clear(StepReport& report) noexcept;

  // ---- residuals
  /// Returns the residuals, for the momentum to inherit; nothing if no step has
  /// been taken. The next step begins without residuals.
  [[nodiscard]] std::optional<RankResiduals> release();
  void add_to(State& state) const;
  [[nodiscard]] std::optional<ResidualViews> residuals() const;
  /// The bits that a run goes on with after a state; `begins`: it is of the
  /// exact rule. Throws Error(kCorruptCheckpoint).
  [[nodiscard]] int bits_after(const StateDict& state, bool begins) const;
  /// Whether a state's residuals are of gradients.
  [[nodiscard]] static bool owns_residuals_of(const StateDict& state);
  /// Continues with these bits and with a state's residuals, if it has any.
  /// Adds a note if they are dropped.
  void restore(int bits, std::optional<RankResiduals>&& residuals,
               Notes& notes);

 private:
  [[nodiscard]] exchange::QuantizedAllReduce& exchange();
  void begin(View grads, double loss_scale);
  void add(std::size_t bucket);
  [[nodiscard]] Range range_of(std::size_t bucket) const;
  [[nodiscard]] View place_of(View grads);
  void decode(View mean);
  void tell();
  void scale_exact(const StepInput& in, View mean);

  LowBitModel& model_;
  int bits_;
  std::unique_ptr<exchange::QuantizedAllReduce> exchange_;  // once needed
  RestoredResiduals restored_;
  Buffer mean_;            // of gradients of 16 bits
  double loss_scale_ = 1;  // of the last step
  double clip_ = 1;        // of the last step, since a load
  bool was_chosen_;        // by total_steps, and nobody has been told
  // Of what has begun.
  View grads_;
  exchange::ReadyRanges ready_;
  std::vector<bool> is_added_;  // per bucket
};

}  // namespace thinwire::optim
