// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <vector>

#include "optim/low_bit/denominator/block_denominators.h"
#include "optim/low_bit/momentum/momentum.h"

namespace thinwire::optim {

/// Gradients of heavy elements are multiplied by their factors.
void scale_heavy(const LowBitModel& model, View grads,
                 std::span<const HeavyElement> heavy);

/// The denominators of a block, which may be written to `scratch`.
using BlockValues = std::function<std::span<const float>(
    std::size_t block, std::array<float, 1024>& scratch)>;
/// Bounds outliers among gradients that will be multiplied by `grad_scale`;
/// `chunk_squares`: sums of squares of `grads` (kernels/norm.h).
void bound_outliers(LowBitModel& model, const BlockDenominators& blocks,
                    const BlockValues& d, View grads, double grad_scale,
                    std::span<const double> chunk_squares);

/// The variance, free of bias, that a denominator is the root of.
[[nodiscard]] inline float variance_under(float d,
                                          const kernels::AdamCoefficients& c) {
  if (c.epsilon_inside_sqrt) return std::max(0.0f, d * d - c.epsilon);
  const float root = std::max(0.0f, d - c.epsilon);
  return root * root;
}

/// Room for one block's gradients, whatever their dtype.
using GuardedBlock = std::array<float, 1024>;

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
  /// After fit(): CompressedMomentum::follow_masks().
  MaskChange follow_masks();

  /// Before gradients are encoded, `grad_scale` being what they will be
  /// multiplied by: those of heavy elements are scaled, outliers are bounded.
  /// `chunk_squares`: sums of squares of `grads` (kernels/norm.h); not used by
  /// host, where `grads` are pieces.
  void guard(View grads, double grad_scale,
             std::span<const double> chunk_squares) const;

  /// The same of block `b` alone, whose gradients are `own` and stay as they
  /// are: those, or what `copy` holds of them.
  [[nodiscard]] ConstView guarded(std::size_t b, ConstView own,
                                  double grad_scale,
                                  std::span<const double> chunk_squares,
                                  GuardedBlock& copy) const;

  [[nodiscard]] float* at(std::size_t offset) {
    return values.as<float>().data() + offset;
  }
  [[nodiscard]] std::span<const HeavyElement> heavy() const {
    return blocks.heavy();
  }
  [[nodiscard]] Participations participation() const {
    return momentum_.participation();
  }
  /// The variance moves again: nothing is divided by, all take part, and the
  /// momentum is what exp_avg holds, without residuals.
  void forget();

  Buffer values;             ///< fp32, of every element.
  BlockDenominators blocks;  ///< Empty before fit().

 private:
  LowBitModel& model_;
  CompressedMomentum& momentum_;
};

}  // namespace thinwire::optim
