// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <span>

#include "optim/low_bit/denominator/denominator.h"
#include "thinwire/exchange/quantized_all_reduce.h"

namespace thinwire::optim {

/// Lets the frozen variance of 1-bit Adam follow the gradient again: in every
/// so many compressed steps it is the gradient that travels, in 4 bits, not the
/// momentum. Not in the paper.
class VarianceRefresh {
 public:
  /// `every` 0: never.
  VarianceRefresh(LowBitModel& model, CompressedMomentum& momentum,
                  Denominator& denominator, std::int64_t every)
      : model_(model),
        momentum_(momentum),
        denominator_(denominator),
        every_(every) {}

  [[nodiscard]] bool is_on() const { return every_ > 0; }
  /// The variance was frozen in step `step`; it is there beside d.
  void begin(std::int64_t step);
  [[nodiscard]] bool is_due(std::int64_t steps_since_freeze) const {
    return is_on() && steps_since_freeze % every_ == 0;
  }
  /// Collective: a compressed step, with the variance moved on the way.
  void run(const StepInput& in, const Coefficients& c, StepMeter& step);
  /// Late elements that take part from now on begin with d^2.
  void admit(std::span<const std::size_t> elements);

  void add_to(State& state) const;
  using FirstDenominators = std::map<std::size_t, float>;
  [[nodiscard]] FirstDenominators read(const StateDict& state) const;
  void restore(FirstDenominators&& first) { first_ = std::move(first); }

 private:
  [[nodiscard]] exchange::QuantizedAllReduce& exchange();
  void own_gradient(std::size_t b, const StepInput& in,
                    const kernels::AdamCoefficients& c, float* g) const;
  void apply(std::size_t b, const float* g, const StepInput& in,
             kernels::AdamCoefficients c);
  void update_variance(std::size_t b, const float* g,
                       const kernels::AdamCoefficients& c);
  void keep_above_first(Range at);

  LowBitModel& model_;
  CompressedMomentum& momentum_;
  Denominator& denominator_;
  std::int64_t every_;
  std::unique_ptr<exchange::QuantizedAllReduce> exchange_;  // made when needed
  FirstDenominators first_;  // of elements that were late
};

}  // namespace thinwire::optim
