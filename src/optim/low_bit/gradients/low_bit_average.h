// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "optim/low_bit/gradients/ready_ranges.h"
#include "optim/low_bit/model.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/exchange/quantized_all_reduce.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// What one rank owes: of the blocks that it encodes, and of those that it
/// serves, one after the other.
struct GradientResiduals {
  Buffer worker;
  Buffer server;
  double clip = 1;  ///< Of the last step's gradients.
};

/// Returns what both sides owe of elements `at`, as floats.
[[nodiscard]] std::vector<float> owed_of(ConstView worker, ConstView server,
                                         Range at);

/// The average of gradients over few bits in exact steps
/// (FreezeOptions::warmup_bits). Gradients without their loss scale travel in 4
/// or 8 bits each way, and what rounding takes is sent later. Groups that are
/// never compressed travel exactly. A group of one has nobody to average with.
class LowBitAverage {
 public:
  explicit LowBitAverage(LowBitModel& model);

  /// Whether the next exact step averages this way.
  [[nodiscard]] bool is_on() const {
    return bits_ != 0 && (model_.compresses() || debt_);
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
  /// The step is skipped: nothing is owed any more, whether it had begun or
  /// not.
  void clear(StepReport& report) noexcept;

  // ---- residuals
  /// Moves them out, to those who go on with the momentum; nothing where no
  /// step has been taken.
  [[nodiscard]] std::optional<GradientResiduals> release();
  void add_to(State& state) const;
  struct Views {
    ConstView worker;
    ConstView server;
  };
  [[nodiscard]] std::optional<Views> residuals() const;
  /// The bits that a run goes on with after a state; `begins`: it is of the
  /// exact rule. Throws Error(kCorruptCheckpoint).
  [[nodiscard]] int bits_after(const StateDict& state, bool begins) const;
  /// Whether a state's residuals are of gradients.
  [[nodiscard]] static bool owns_residuals_of(const StateDict& state);
  /// Goes on with these bits, owing nothing.
  void restore(int bits);
  /// The same, owing what a state says. Adds a note if that is dropped.
  void restore(int bits, GradientResiduals&& residuals, Notes& notes);

 private:
  [[nodiscard]] exchange::QuantizedAllReduce& exchange();
  void begin(View grads, double loss_scale);
  void add(std::size_t bucket);
  [[nodiscard]] Range range_of(std::size_t bucket) const;
  [[nodiscard]] View place_of(View grads);
  void decode(View mean);
  void tell();
  void scale_exact(const StepInput& in, View mean);
  void pay_debt(const StepInput& in, View mean);

  LowBitModel& model_;
  int bits_;
  std::unique_ptr<exchange::QuantizedAllReduce> exchange_;  // once needed
  std::optional<GradientResiduals> debt_;                   // of a group of one
  Buffer mean_;            // of gradients of 16 bits
  double loss_scale_ = 1;  // of the last step
  double clip_ = 1;        // of the last step, since a load
  bool was_chosen_;        // by total_steps, and nobody has been told
  // Of what has begun.
  View grads_;
  ReadyRanges ready_;
  std::vector<bool> is_added_;  // per bucket
};

}  // namespace thinwire::optim
