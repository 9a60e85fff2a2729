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

/// Options of one group of parameters. Unset fields are the optimizer's.
struct OnebitAdamGroup : MaskedGroup {
  /// Whether the group stays exact in the compression stage, including its
  /// variance.
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
  /// One entry per group of the layout, or none if all groups are alike.
  std::vector<OnebitAdamGroup> groups{};

  /// Number of exact steps, >= 1, or kAutoFreeze. If unset, it is a fifth of
  /// total_steps, at most 1000 (run_length.h), or 100000 without total_steps.
  /// After a load, a value that is set decides the stage. An unset one gives
  /// way to the state's.
  std::optional<std::int64_t> freeze_step{};
  /// Steps of the learning rate's warm-up, >= 0. kAutoFreeze does not freeze
  /// before its end.
  std::optional<std::int64_t> lr_warmup_steps{};
  /// Steps of the run, >= 1. kAutoFreeze does not freeze in the first tenth of
  /// them.
  std::optional<std::int64_t> total_steps{};
  /// Step before which kAutoFreeze does not freeze, >= 1. A fifth of
  /// total_steps replaces it if that is less.
  std::int64_t min_freeze_step = 100;
  /// Latest step at which kAutoFreeze freezes, >= 1, but not before the
  /// earliest. If unset, it is a fifth of total_steps, or 100000 without
  /// total_steps.
  std::optional<std::int64_t> max_freeze_step{};
  /// Ratio in (0, 1] by which kAutoFreeze decides. It compares the L1 norms of
  /// the variance now and w steps ago. Here w is half of the steps so far, at
  /// least 50. If the norms are within this ratio, it freezes.
  double freeze_ratio = 0.85;

  /// Least denominator after the freeze, as a fraction of its block's RMS;
  /// finite, >= 0; 0 for no floor.
  double denom_floor = 0.3;
  DType residual_dtype = DType::kFloat32;  ///< kFloat32 or kBFloat16.
  ExchangeOptions exchange{};

  /// Checks the options. The layout determines the number of groups and the
  /// length of masks. Throws Error(kInvalidArgument) naming the field, its
  /// range and its value.
  void validate(const ParameterLayout& layout) const;

  bool operator==(const OnebitAdamOptions&) const = default;
};

/// Adam that averages momentum over the ranks with one bit per element.
///
/// Up to freeze_step it is exact Adam. Then the variance is frozen, and each
/// rank forms m_i = beta1 m + (1 - beta1) g_i. The ranks average m_i with the
/// error-compensated 1-bit all-reduce of exchange/compressed_all_reduce.h. The
/// next step adds what rounding has removed. A single rank does not compress.
///
/// Source: Tang et al., "1-bit Adam", arXiv:2102.02888, Algorithm 1. Departures
/// (bias correction, denominator floor, block scales, calibrated clipping,
/// automatic freeze): docs/algorithms.md.
class OnebitAdam final : public LowBitOptimizer {
 public:
  /// Collective: all ranks pass the same layout and options. Otherwise it
  /// throws Error(kInvalidArgument) on all ranks, showing the first difference.
  /// `comm` must outlive this object.
  ///
  /// Memory per parameter: 8 bytes in exact steps; in compressed steps 8.13
  /// bytes, or 16.13 with a non_freeze group. Compressed steps also take 4/W
  /// bytes for the chunk that this rank serves.
  ///
  /// State: the arrays and scalars of LowBitOptimizer; the arrays exp_avg_sq
  /// [n] and denominator [n]; the scalar frozen_at and the automatic freeze's
  /// history. The array exp_avg_sq exists until the freeze, and where the
  /// variance is kept.
  OnebitAdam(comm::Communicator& comm, const ParameterLayout& layout,
             const OnebitAdamOptions& options);
  ~OnebitAdam() override;
};

}  // namespace thinwire::optim
