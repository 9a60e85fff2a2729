// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "exchange/low_bit_exchange.h"
#include "exchange/ready_ranges.h"
#include "optim/averages/wide_mean.h"
#include "optim/low_bit/model.h"
#include "optim/low_bit/restored_residuals.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// The low-bit average of gradients in exact steps
/// (FreezeOptions::warmup_bits). Gradients are divided by the loss scale and
/// sent in both directions with error feedback. Groups that are never
/// compressed are sent exactly. A single rank does not compress.
class WarmUpAverage {
 public:
  explicit WarmUpAverage(LowBitModel& model);

  /// Returns whether the next exact step uses this average.
  [[nodiscard]] bool is_on() const {
    return bits_ != 0 && (model_.compresses() || !restored_.empty());
  }
  /// Returns the bits per element, or 0 if gradients are sent exactly.
  [[nodiscard]] int bits() const { return bits_; }

  // ---- before the step; flat only
  /// Encodes the buckets that elements `range` of the gradients complete.
  /// `loss_scale` is the one that the step is assumed to have. Only if flat.
  /// Collective, queued.
  void begin_early(View grads, Range range, double loss_scale);
  [[nodiscard]] bool has_begun() const;

  // ---- the step
  /// Returns whether the step began early with another loss scale than it has.
  [[nodiscard]] bool was_wrong(const StepInput& in) const;
  /// Returns the average in fp32, which replaces fp32 gradients. `begins_anew`
  /// is whether some rank has begun with a wrong loss scale. Collective.
  [[nodiscard]] View average(const StepInput& in, bool begins_anew,
                             StepMeter& step);
  /// Records that the step has multiplied gradients by `factor` to clip them.
  void clipped_by(double factor) { clip_ = factor; }
  /// Abandons a step that has begun. Sets the residuals, which it has changed,
  /// to 0.
  void abandon() noexcept;
  /// Sets the residuals to 0 because the step is skipped, whether or not it has
  /// begun.
  void clear(StepReport& report) noexcept;

  // ---- residuals
  /// Returns the residuals for the momentum, or nothing if no step has been
  /// taken. The next step starts without residuals.
  [[nodiscard]] std::optional<RankResiduals> release();
  void add_to(State& state) const { save_bits(state, bits_); }
  /// Returns the residuals for the next exact step, or nothing if it starts
  /// without any.
  [[nodiscard]] std::optional<ResidualViews> residuals() const;
  [[nodiscard]] int bits_after(const StateDict& state, bool begins) const {
    return saved_bits(state, model_.settings.warmup_bits, begins);
  }
  /// Note of a load that drops residuals.
  static constexpr const char* kDropped =
      "warmup_bits is 0, but the state's exact steps sent gradients in few "
      "bits: what rounding took of them is dropped";
  static void save_bits(State& state, int bits);
  /// Returns the bits with which a run with these options continues from a
  /// state. `begins` is whether the state is that of the exact rule. Throws
  /// Error(kCorruptCheckpoint).
  [[nodiscard]] static int saved_bits(const StateDict& state,
                                      const WarmupBits& own, bool begins);
  /// Returns whether the residuals in a state belong to gradients.
  [[nodiscard]] static bool owns_residuals_of(const StateDict& state);
  /// Continues with these bits and with the residuals of a state, if any. Adds
  /// a note if they are dropped.
  void restore(int bits, std::optional<RankResiduals>&& residuals,
               Notes& notes);

 private:
  [[nodiscard]] exchange::LowBitExchange& exchange();
  void begin(View grads, double loss_scale);
  void add(std::size_t bucket);
  [[nodiscard]] Range range_of(std::size_t bucket) const;
  void tell();
  void scale_exact(const StepInput& in, View mean);

  LowBitModel& model_;
  int bits_;
  std::unique_ptr<exchange::LowBitExchange> exchange_;  // created on first use
  RestoredResiduals restored_;
  WideMean mean_;    // for 16-bit gradients
  double clip_ = 1;  // clip factor of the last step since a load
  bool was_chosen_;  // by total_steps, and not logged yet
  // State of the present step.
  View grads_;
  double loss_scale_ = 1;
  exchange::ReadyRanges ready_;
  std::vector<bool> is_added_;  // per bucket
};

}  // namespace thinwire::optim
