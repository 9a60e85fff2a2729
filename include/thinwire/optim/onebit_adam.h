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
struct OnebitAdamGroup : MaskedGroup {
  /// Stays exact in the compression stage, its variance too.
  bool non_freeze = false;

  bool operator==(const OnebitAdamGroup&) const = default;
};

/// Settings of OnebitAdam:
///   OnebitAdam opt(comm, layout, {.learning_rate = 4e-4, .freeze_step =
///   23'000});
struct OnebitAdamOptions {
  double learning_rate = 1e-3;  ///< Step size, finite, >= 0.
  double beta1 = 0.9;           ///< Momentum decay per step, in [0, 1).
  double beta2 = 0.999;         ///< Variance decay per step, in [0, 1).
  double epsilon = 1e-8;        ///< Keeps the denominator above 0, > 0.
  double weight_decay = 0;      ///< Decoupled (AdamW), per step, finite, >= 0.
  bool bias_correction = true;
  bool epsilon_inside_sqrt = false;  ///< sqrt(v + eps), not sqrt(v) + eps.
  /// One entry per group of the layout, or empty: all alike.
  std::vector<OnebitAdamGroup> groups{};

  /// Number of exact steps, >= 1, or kAutoFreeze. Not given: by total_steps a
  /// fifth of the run, at most 1000 (run_length.h), else 100000. A value that
  /// is given decides the stage after a load, too; one that is not gives way to
  /// the state's.
  std::optional<std::int64_t> freeze_step{};
  /// kAutoFreeze: not before the learning rate's warm-up has ended, ...
  std::optional<std::int64_t> lr_warmup_steps{};  ///< >= 0.
  /// ... nor before a tenth of all steps, ...
  std::optional<std::int64_t> total_steps{};  ///< Of the run, >= 1.
  /// ... nor before this step, unless a fifth of all steps is less; >= 1.
  std::int64_t min_freeze_step = 100;
  /// At the latest, but not before the earliest; >= 1; a fifth of total_steps,
  /// else 100000, where not given.
  std::optional<std::int64_t> max_freeze_step{};
  /// Freeze when the variance's L1 norm and that of half of the steps so far
  /// ago, at least 50, are within this ratio; in (0, 1].
  double freeze_ratio = 0.85;

  /// From the freeze on no denominator is below this fraction of its block's
  /// RMS; finite, >= 0; 0: no floor.
  double denom_floor = 0.3;
  DType residual_dtype = DType::kFloat32;  ///< kFloat32 or kBFloat16.
  ExchangeOptions exchange{};

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  /// The layout says how many groups there are and how long masks must be.
  void validate(const ParameterLayout& layout) const;

  bool operator==(const OnebitAdamOptions&) const = default;
};

/// Adam that averages momentum across ranks with one bit per element.
///
/// Up to freeze_step it is exact Adam. Then the variance is frozen, each rank
/// forms m_i = beta1 m + (1 - beta1) g_i, and the ranks average m_i with the
/// error-compensated 1-bit all-reduce of compress/compressed_all_reduce.h; what
/// rounding took away is added back at the next step. A group of one rank
/// compresses nothing.
///
/// Source: Tang et al., "1-bit Adam", arXiv:2102.02888, Algorithm 1. Departures
/// (bias correction, denominator floor, block scales, calibrated clipping,
/// automatic freeze): docs/algorithms.md.
class OnebitAdam final : public LowBitOptimizer {
 public:
  /// Collective: all ranks give the same layout and options, else
  /// Error(kInvalidArgument) on all of them shows the first difference. Holds 8
  /// bytes per parameter in exact steps, in compressed ones 8.13 and 4/W for
  /// the chunk it serves (16.13 with a non_freeze group). `comm` must outlive
  /// this object.
  ///
  /// State: those of LowBitOptimizer; arrays exp_avg_sq [n] (until the freeze,
  /// and where the variance is kept) and denominator [n]; scalars frozen_at and
  /// the automatic freeze's history.
  OnebitAdam(comm::Communicator& comm, const ParameterLayout& layout,
             const OnebitAdamOptions& options);
  ~OnebitAdam() override;
};

}  // namespace thinwire::optim
