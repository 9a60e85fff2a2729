// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "exchange/ready_ranges.h"
#include "optim/low_bit/denominator/denominator.h"
#include "optim/low_bit/gradients/local_gradients.h"
#include "optim/low_bit/momentum/momentum.h"

namespace thinwire::optim {

/// The momentum's exchange of the step to come, begun while backward goes on
/// (ExchangeOptions::during_backward). It guesses what only the whole gradient
/// tells: that all ranks' are finite, that none of them is a spike, that no
/// late element has a gradient. The step finds out, and then takes the exchange
/// or drops it: it leaves no trace but bytes sent.
class EarlyMomentum {
 public:
  EarlyMomentum(LowBitModel& model, LocalGradients& gradients,
                CompressedMomentum& momentum, const Denominator& denominator)
      : model_(model),
        gradients_(gradients),
        momentum_(momentum),
        denominator_(denominator) {}
  /// What is under way reads the parts named above.
  ~EarlyMomentum() { drop(); }
  EarlyMomentum(const EarlyMomentum&) = delete;
  EarlyMomentum& operator=(const EarlyMomentum&) = delete;

  /// In compressed steps; it is flat, an exchange by host is refused.
  [[nodiscard]] bool is_on() const {
    return model_.settings.exchange.during_backward && model_.compresses();
  }
  /// As EarlyGradients::buckets(): as many as the exchange has, each of which
  /// lets one of those leave.
  [[nodiscard]] std::vector<Range> buckets() const;

  /// Collective, queued: elements `range` of the gradients of step `number` are
  /// there.
  void add(View grads, Range range, std::int64_t number);
  [[nodiscard]] bool has_begun() const {
    return momentum_.exchange.has_begun_early();
  }

  // ---- the step, in this order, if it has begun
  /// Collective, queued: the gradients that were not added. False: `in` is not
  /// what was added, or is scaled otherwise than the step before.
  [[nodiscard]] bool complete(const StepInput& in);
  /// After all ranks know each other's gradients, and whether complete() was
  /// false on any: what was guessed is so, with this scale of gradients.
  [[nodiscard]] bool was_right(double grad_scale) const {
    return grad_scale == grad_scale_ && !gradients_.any_late() &&
           !gradients_.any_unlike_early();
  }
  void drop() noexcept;
  /// Every step, early or not.
  void remember(const StepInput& in) { loss_scale_ = in.loss_scale; }

 private:
  void begin(View grads, std::int64_t number);
  /// Where gradients must be there for bucket `k` to be encoded.
  [[nodiscard]] std::size_t need_of(std::size_t k) const;
  void add_complete();
  [[nodiscard]] kernels::SignInput input(std::size_t b) const;

  LowBitModel& model_;
  LocalGradients& gradients_;
  CompressedMomentum& momentum_;
  const Denominator& denominator_;
  double loss_scale_ = 1;  // of the last step
  // Of the exchange that has begun:
  View grads_;
  double grad_scale_ = 1;
  Coefficients coefficients_;
  exchange::ReadyRanges ready_;  // on the grid
};

}  // namespace thinwire::optim
