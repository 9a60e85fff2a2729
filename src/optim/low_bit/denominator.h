// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "optim/low_bit/block_denominators.h"
#include "optim/low_bit/momentum.h"

namespace thinwire::optim {

/// d = sqrt(v) + eps of every element, while the variance v does not move, made
/// fit to be divided by; and what is done to gradients so that none of them,
/// over such a d, spoils its block for the others
/// (docs/algorithms/late-and-heavy.md).
class Denominator {
 public:
  Denominator(LowBitModel& model, CompressedMomentum& momentum)
      : model_(model), momentum_(momentum) {}

  /// `values` holds sqrt(v) + eps: floors and caps it, and scales the momentum
  /// of heavy elements. `elements` says who takes part by mask and variance.
  void fit(std::vector<std::uint8_t> elements);
  /// Floors block `b`, whose variance has moved.
  void refit(std::size_t b);

  /// Before gradients are encoded, `grad_scale` being what they will be
  /// multiplied by: those of heavy elements are scaled, outliers are bounded.
  /// `chunk_squares`: sums of squares of `grads` (kernels/norm.h).
  void guard(View grads, double grad_scale,
             std::span<const double> chunk_squares) const;

  [[nodiscard]] float* at(std::size_t offset) {
    return values.as<float>().data() + offset;
  }
  [[nodiscard]] std::span<const HeavyElement> heavy() const {
    return blocks.heavy();
  }

  Buffer values;             ///< fp32, of every element.
  BlockDenominators blocks;  ///< Empty before fit().

 private:
  void scale_heavy(View grads) const;
  void bound_outliers(View grads, double grad_scale,
                      std::span<const double> chunk_squares) const;

  LowBitModel& model_;
  CompressedMomentum& momentum_;
};

}  // namespace thinwire::optim
