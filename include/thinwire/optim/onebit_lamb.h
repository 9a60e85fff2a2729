// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/optim/compression_options.h"
#include "thinwire/optim/freeze_options.h"
#include "thinwire/optim/low_bit_optimizer.h"

namespace thinwire::optim {

/// Options of one group of parameters. Unset fields take the optimizer's
/// values.
struct OnebitLambGroup : MaskedGroup {
  std::optional<double> max_coeff{};
  std::optional<double> min_coeff{};

  bool operator==(const OnebitLambGroup&) const = default;
};

/// Settings of OnebitLamb:
///   OnebitLamb opt(comm, layout,
///                  {.learning_rate = 1e-2, .freeze = {.step = 1000}});
struct OnebitLambOptions {
  double learning_rate = 1e-3;  ///< Step size, finite, >= 0.
  double beta1 = 0.9;           ///< Momentum decay per step, in [0, 1).
  double beta2 = 0.999;         ///< Variance decay per step, in [0, 1).
  double epsilon = 1e-8;        ///< Positive; keeps the denominator above 0.
  double weight_decay = 0;      ///< Decoupled (AdamW), finite, >= 0.
  bool bias_correction = true;
  bool epsilon_inside_sqrt = false;  ///< Use sqrt(v + eps).
  /// One entry per group of the layout, or none if all groups are alike.
  std::vector<OnebitLambGroup> groups{};

  /// Largest trust ratio of an exact step, finite, >= min_coeff. Compressed
  /// steps only multiply the average of such ratios by the factor.
  double max_coeff = 10;
  double min_coeff = 0.01;  ///< Smallest trust ratio, finite, >= 0.
  /// Decay of the average of trust ratios that compressed steps use, in [0, 1).
  double coeff_beta = 0.9;
  /// Largest factor of the average, finite, >= factor_min.
  double factor_max = 4;
  /// Smallest factor of the average, finite, > 0.
  double factor_min = 0.5;
  /// Largest change of the factor from one step to the next, in [0, 1].
  double factor_threshold = 0.1;

  FreezeOptions freeze{};            ///< End of the exact steps.
  CompressionOptions compression{};  ///< Compressed steps and the exchange.

  /// Checks the options. The layout determines the number of groups and the
  /// length of masks. Throws Error(kInvalidArgument) naming the field, its
  /// range and its value.
  void validate(const ParameterLayout& layout) const;

  bool operator==(const OnebitLambOptions&) const = default;
};

/// LAMB that averages momentum over the ranks with one bit per element.
///
/// Up to freeze.step it is exact LAMB, and averages every parameter's trust
/// ratio. Then the variance is frozen. The ranks exchange momentum as in
/// OnebitAdam, scaled per parameter to a common size. A fresh variance is
/// computed from successive momenta, and the frozen ratio is adapted by how far
/// it differs from the frozen variance.
///
/// Source: Li et al., "1-bit LAMB", arXiv:2104.06069, Algorithm 1. Departures
/// (bias correction, denominator floor, block scales, calibrated clipping):
/// docs/algorithms/onebit-lamb.md.
class OnebitLamb final : public LowBitOptimizer {
 public:
  /// Creates the optimizer under the conditions of OnebitAdam's constructor.
  /// Collective. `comm` must outlive this object.
  ///
  /// Memory per parameter: 8 bytes in exact steps, and residuals with
  /// warmup_bits. In compressed steps it is 12.26 bytes, plus 4/W bytes for the
  /// chunk that this rank serves.
  ///
  /// State: the arrays and scalars of LowBitOptimizer; the scalar frozen_at and
  /// the history of the automatic freeze. The array exp_avg_sq [n] exists until
  /// the freeze. After it there are denominator and exp_avg_sq_fresh [n], and
  /// denominator_floors, one per block of the exchange. Arrays with one value
  /// per parameter are lamb_coeffs, lamb_coeff_freeze, lamb_coeff_count,
  /// last_factor and scaling_coeff.
  OnebitLamb(comm::Communicator& comm, const ParameterLayout& layout,
             const OnebitLambOptions& options);
  ~OnebitLamb() override;
};

}  // namespace thinwire::optim
