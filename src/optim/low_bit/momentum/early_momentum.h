// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "exchange/ready_ranges.h"
#include "optim/low_bit/denominator/denominator.h"
#include "optim/low_bit/gradients/local_gradients.h"
#include "optim/low_bit/momentum/momentum.h"

namespace thinwire::optim {

/// Starts the exchange of the momentum during backward
/// (ExchangeOptions::during_backward). It assumes that all gradients are
/// finite, that none is a spike, and that no inactive element has a gradient.
/// The step verifies this and accepts or discards the result. A discarded
/// exchange costs only bandwidth.
class EarlyMomentum {
 public:
  EarlyMomentum(LowBitModel& model, LocalGradients& gradients,
                CompressedMomentum& momentum, const Denominator& denominator)
      : model_(model),
        gradients_(gradients),
        momentum_(momentum),
        denominator_(denominator) {}
  /// Discards an exchange in flight, because it reads the members above.
  ~EarlyMomentum() { drop(); }
  EarlyMomentum(const EarlyMomentum&) = delete;
  EarlyMomentum& operator=(const EarlyMomentum&) = delete;

  /// Returns whether compressed steps begin early. This requires a flat
  /// exchange.
  [[nodiscard]] bool is_on() const {
    return model_.settings.exchange.during_backward && model_.compresses();
  }
  /// Returns EarlyGradients::buckets(). Each of them completes one bucket of
  /// the exchange.
  [[nodiscard]] std::vector<Range> buckets() const;

  /// Adds elements `range` of step `number`'s gradients. Collective, queued.
  void add(View grads, Range range, std::int64_t number);
  [[nodiscard]] bool has_begun() const {
    return momentum_.exchange.has_begun_early();
  }

  // ---- a step that has begun, in this order
  /// Adds the remaining gradients. Returns false if `in` has another loss scale
  /// than the exchange began with. Collective, queued.
  [[nodiscard]] bool complete(const StepInput& in);
  /// Returns whether the assumptions held and gradients have this scale. Call
  /// it after all ranks know each other's gradients and results of complete().
  [[nodiscard]] bool was_right(double grad_scale) const {
    return grad_scale == grad_scale_ && !gradients_.any_late() &&
           !gradients_.any_unlike_early();
  }
  void drop() noexcept;

 private:
  void begin(View grads, std::int64_t number);
  /// Returns the first element that must be ready for bucket `k` to be encoded.
  [[nodiscard]] std::size_t need_of(std::size_t k) const;
  void add_complete();
  [[nodiscard]] kernels::SignInput input(std::size_t b) const;

  LowBitModel& model_;
  LocalGradients& gradients_;
  CompressedMomentum& momentum_;
  const Denominator& denominator_;
  // State of the exchange in flight.
  View grads_;
  double loss_scale_ = 1;
  double grad_scale_ = 1;
  Coefficients coefficients_;
  exchange::ReadyRanges ready_;  // on the grid
  std::size_t left_ = 0;         // buckets [0, left_) are not ready
};

}  // namespace thinwire::optim
