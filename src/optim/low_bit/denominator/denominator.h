// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <vector>

#include "optim/low_bit/denominator/block_denominators.h"
#include "optim/low_bit/momentum/momentum.h"
#include "optim/state_parts.h"

namespace thinwire::optim {

/// Multiplies the gradients of outliers (HeavyElement) by their factors.
void scale_heavy(const LowBitModel& model, View grads,
                 std::span<const HeavyElement> heavy);

/// Returns the denominators of a block. It may write them to `scratch`.
using BlockValues = std::function<std::span<const float>(
    std::size_t block, std::array<float, 1024>& scratch)>;
/// Limits outliers among gradients that will be multiplied by `grad_scale`.
/// `chunk_squares` holds sums of squares of `grads` (kernels/norm.h).
void bound_outliers(LowBitModel& model, const BlockDenominators& blocks,
                    const BlockValues& d, View grads, double grad_scale,
                    std::span<const double> chunk_squares);

/// Returns the bias-free variance whose root is the denominator d.
[[nodiscard]] inline float variance_under(float d,
                                          const kernels::AdamCoefficients& c) {
  if (c.epsilon_inside_sqrt) return std::max(0.0f, d * d - c.epsilon);
  const float root = std::max(0.0f, d - c.epsilon);
  return root * root;
}

/// The denominator d = sqrt(v) + eps of every element while the variance v is
/// frozen. It is limited so that dividing by it is safe. Gradients are scaled
/// and limited so that none dominates its block
/// (docs/algorithms/late-and-heavy.md).
class Denominator {
 public:
  Denominator(LowBitModel& model, CompressedMomentum& momentum)
      : model_(model), momentum_(momentum) {}

  /// Caps and floors `values`, which holds sqrt(v) + eps, and scales the
  /// momentum of outliers. `elements` holds the participation by mask and
  /// variance.
  void fit(std::vector<std::uint8_t> elements);
  /// Applies the caller's masks after fit(), like
  /// MomentumParticipation::follow_masks().
  MaskChange follow_masks();

  /// Updates block `b` with its new momentum:
  ///   p <- p - lr (m / (1 - beta1^t) / d + wd p)
  void update(std::size_t b, const kernels::MomentumForm& m,
              const StepInput& in, const kernels::AdamCoefficients& c) const;
  /// Returns a function that updates the blocks of one step. The arguments must
  /// outlive it.
  [[nodiscard]] MomentumExchange::Apply updates(const StepInput& in,
                                                const Coefficients& c) const {
    return [&, this](std::size_t b, const kernels::MomentumForm& m) {
      update(b, m, in, c[model_.layout.block_group[b]]);
    };
  }

  /// Scales and limits outliers before gradients are multiplied by `grad_scale`
  /// and encoded. `chunk_squares` holds sums of squares of `grads`
  /// (kernels/norm.h). A hierarchical exchange does not use them, because its
  /// `grads` are pieces.
  void guard(View grads, double grad_scale,
             std::span<const double> chunk_squares) const;

  [[nodiscard]] float* at(std::size_t offset) {
    return values.as<float>().data() + offset;
  }
  [[nodiscard]] std::span<const HeavyElement> heavy() const {
    return blocks.heavy();
  }
  /// Returns whether an element has a variance, because it has had a gradient
  /// and is not unfit.
  [[nodiscard]] bool has_variance(std::size_t element) const;
  /// Restores the variance after `updates` updates from the denominators. It is
  /// 0 if an element has none.
  void restore_variance(std::int64_t updates);
  /// Ends this stage, because the variance changes again. All elements take
  /// part, and the momentum is kept as values, without residuals.
  void forget();

  /// Lists `values`, for states that also contain `blocks`.
  void list(StateParts& parts);

  Buffer values;             ///< fp32, of every element.
  BlockDenominators blocks;  ///< Empty before fit().

 private:
  LowBitModel& model_;
  CompressedMomentum& momentum_;
};

}  // namespace thinwire::optim
