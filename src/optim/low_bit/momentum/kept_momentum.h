// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "exchange/sign_exchange.h"
#include "optim/low_bit/model.h"
#include "thinwire/kernels/lamb.h"
#include "thinwire/optim/state.h"

namespace thinwire::optim {

/// The momentum between steps, in one of two forms: values (Adam's exp_avg) or,
/// after an exchange, signs. The signs are the exchange's own result and take
/// 1/32 of the memory.
class KeptMomentum {
 public:
  explicit KeptMomentum(LowBitModel& model) : model_(model) {}

  /// Returns block `b`.
  [[nodiscard]] kernels::MomentumForm current(std::size_t b) const;
  /// Returns block `b` as it was before the exchange in flight or, if there is
  /// none, before the last exchange.
  [[nodiscard]] kernels::MomentumForm previous(std::size_t b) const;
  /// Returns this rank's beta1 m + (1 - beta1) g of block `b`, computed while
  /// it is read.
  [[nodiscard]] kernels::SignInput input(
      std::size_t b, View grads, const kernels::AdamCoefficients& c) const;

  /// Sets the factor of each block's momentum in the exchange: a common size in
  /// 1-bit LAMB, and -(sum of learning rates) in 0/1 Adam. If empty, all
  /// factors are 1.
  void set_units(std::vector<float> units) { units_ = std::move(units); }
  [[nodiscard]] std::span<const float> units() const { return units_; }
  [[nodiscard]] float unit(std::size_t b) const {
    return units_.empty() ? 1 : units_[b];
  }
  [[nodiscard]] kernels::Signs over_unit(kernels::Signs mean,
                                         std::size_t b) const {
    return {mean.words, mean.scale / unit(b)};
  }

  /// Sets the momentum to the last result of `all`. Drops exp_avg if no group
  /// needs it.
  void keep_as_signs(const exchange::SignExchange& all);
  /// Decodes the momentum into exp_avg.
  void keep_as_values();
  /// Declares exp_avg to be the momentum.
  void now_values() { signs_ = nullptr; }

  /// Describes the momentum as array `name` with this `sharing` between ranks.
  void add_to(State& state, std::string_view name, Sharing sharing) const;

 private:
  [[nodiscard]] kernels::Signs mean(std::size_t b) const {
    return over_unit(signs_->mean(b), b);
  }
  void decode(std::size_t b, float* to) const;
  void read(Range range, std::span<float> to) const;

  LowBitModel& model_;
  const exchange::SignExchange* signs_ = nullptr;  // null if kept as values
  std::vector<float> units_;
};

}  // namespace thinwire::optim
