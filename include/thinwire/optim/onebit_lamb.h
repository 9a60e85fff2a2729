// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/optim/low_bit_optimizer.h"
#include "thinwire/optim/run_length.h"

namespace thinwire::optim {

/// What a group of parameters does differently; unset fields are the options'.
struct OnebitLambGroup : MaskedGroup {
  std::optional<double> max_coeff{};
  std::optional<double> min_coeff{};

  bool operator==(const OnebitLambGroup&) const = default;
};

/// Settings of OnebitLamb:
///   OnebitLamb opt(comm, layout, {.learning_rate = 1e-2, .freeze_step =
///   1000});
struct OnebitLambOptions {
  double learning_rate = 1e-3;  ///< Step size, finite, >= 0.
  double beta1 = 0.9;           ///< Momentum decay per step, in [0, 1).
  double beta2 = 0.999;         ///< Variance decay per step, in [0, 1).
  double epsilon = 1e-8;        ///< Keeps the denominator above 0, > 0.
  double weight_decay = 0;      ///< Decoupled (AdamW), finite, >= 0.
  bool bias_correction = true;
  bool epsilon_inside_sqrt = false;  ///< sqrt(v + eps), not sqrt(v) + eps.
  /// One entry per group of the layout, or empty: all alike.
  std::vector<OnebitLambGroup> groups{};

  /// Of a ratio when an exact step computes it; compressed steps adapt the
  /// average of such ratios by the factor alone.
  double max_coeff = 10;    ///< Largest trust ratio, finite, >= min_coeff.
  double min_coeff = 0.01;  ///< Smallest trust ratio, finite, >= 0.
  /// Decay of the trust ratios' average that compressed steps use, in [0, 1).
  double coeff_beta = 0.9;
  double factor_max = 4;    ///< Largest factor on it, finite, >= factor_min.
  double factor_min = 0.5;  ///< Smallest factor on it, finite, > 0.
  /// How much the factor may change from one step to the next, in [0, 1].
  double factor_threshold = 0.1;

  /// Number of exact steps, >= 1, or kAutoFreeze. Not given: by total_steps a
  /// fifth of the run, at most 1000 (run_length.h), else 100000. A value that
  /// is given decides the stage after a load, too; one that is not gives way to
  /// the state's.
  std::optional<std::int64_t> freeze_step{};
  /// The automatic freeze, as in OnebitAdamOptions.
  std::optional<std::int64_t> lr_warmup_steps{};  ///< >= 0.
  std::optional<std::int64_t> total_steps{};      ///< Of the run, >= 1.
  std::int64_t min_freeze_step = 100;             ///< >= 1.
  std::optional<std::int64_t> max_freeze_step{};  ///< >= 1.
  double freeze_ratio = 0.85;                     ///< In (0, 1].

  /// From the freeze on no denominator is below this fraction of its block's
  /// RMS; finite, >= 0; 0: no floor.
  double denom_floor = 0.3;
  DType residual_dtype = DType::kFloat32;  ///< kFloat32 or kBFloat16.
  ExchangeOptions exchange{};

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  /// The layout says how many groups there are and how long masks must be.
  void validate(const ParameterLayout& layout) const;

  bool operator==(const OnebitLambOptions&) const = default;
};

/// LAMB that averages momentum across ranks with one bit per element.
///
/// Up to freeze_step it is exact LAMB, and keeps an average of every
/// parameter's trust ratio. Then the variance is frozen and momentum travels as
/// in OnebitAdam, scaled per parameter to a common size. The frozen ratio is
/// adapted by how far a fresh variance, rebuilt from successive momenta, has
/// moved away from the frozen one.
///
/// Source: Li et al., "1-bit LAMB", arXiv:2104.06069, Algorithm 1. Departures
/// (bias correction, denominator floor, block scales, calibrated clipping):
/// docs/algorithms.md.
class OnebitLamb final : public LowBitOptimizer {
 public:
  /// Collective, as OnebitAdam's. Holds 8 bytes per parameter in exact steps,
  /// in compressed ones 12.25 and 4/W for the chunk it serves. `comm` must
  /// outlive this object.
  ///
  /// State: those of LowBitOptimizer; arrays exp_avg_sq [n] (until the freeze),
  /// denominator and exp_avg_sq_fresh [n] and denominator_floors, one per block
  /// of the exchange (from the freeze on), lamb_coeffs,
  /// lamb_coeff_freeze, lamb_coeff_count, last_factor and scaling_coeff (one
  /// per parameter); scalars frozen_at and the automatic freeze's history.
  OnebitLamb(comm::Communicator& comm, const ParameterLayout& layout,
             const OnebitLambOptions& options);
  ~OnebitLamb() override;
};

}  // namespace thinwire::optim
