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
struct OnebitAdamGroup : MaskedGroup {
  /// Whether the group stays exact in the compression stage, including its
  /// variance.
  bool non_freeze = false;

  bool operator==(const OnebitAdamGroup&) const = default;
};

/// Settings of OnebitAdam:
///   OnebitAdam opt(comm, layout,
///                  {.learning_rate = 4e-4, .freeze = {.step = 23'000}});
struct OnebitAdamOptions {
  double learning_rate = 1e-3;  ///< Step size, finite, >= 0.
  double beta1 = 0.9;           ///< Momentum decay per step, in [0, 1).
  double beta2 = 0.999;         ///< Variance decay per step, in [0, 1).
  double epsilon = 1e-8;        ///< Positive; keeps the denominator above 0.
  double weight_decay = 0;      ///< Decoupled (AdamW), per step, finite, >= 0.
  bool bias_correction = true;
  bool epsilon_inside_sqrt = false;  ///< Use sqrt(v + eps).
  /// One entry per group of the layout, or none if all groups are alike.
  std::vector<OnebitAdamGroup> groups{};

  FreezeOptions freeze{};            ///< End of the exact steps.
  CompressionOptions compression{};  ///< Compressed steps and the exchange.

  /// Checks the options. The layout determines the number of groups and the
  /// length of masks. Throws Error(kInvalidArgument) naming the field, its
  /// range and its value.
  void validate(const ParameterLayout& layout) const;

  bool operator==(const OnebitAdamOptions&) const = default;
};

/// Adam that averages momentum over the ranks with one bit per element.
///
/// Up to freeze.step it is exact Adam. Then the variance is frozen, and each
/// rank computes m_i = beta1 m + (1 - beta1) g_i. The ranks average m_i with
/// the error-compensated 1-bit all-reduce of exchange/compressed_all_reduce.h,
/// and the next step adds the rounding errors. A single rank does not compress.
///
/// Source: Tang et al., "1-bit Adam", arXiv:2102.02888, Algorithm 1. Departures
/// (bias correction, denominator floor, block scales, calibrated clipping,
/// automatic freeze): docs/algorithms/onebit-adam.md.
class OnebitAdam final : public LowBitOptimizer {
 public:
  /// Creates the optimizer. Collective. If ranks pass different layouts or
  /// options, throws Error(kInvalidArgument) on all ranks, with the first
  /// difference. `comm` must outlive this object.
  ///
  /// Memory per parameter: 8 bytes in exact steps, and residuals with
  /// warmup_bits; in compressed steps 8.13 bytes, or 16.13 with a non_freeze
  /// group. Compressed steps also need 4/W bytes for the chunk that this rank
  /// serves.
  ///
  /// State: the arrays and scalars of LowBitOptimizer; the arrays exp_avg_sq
  /// [n] and denominator [n]; the scalar frozen_at and the history of the
  /// automatic freeze. The array exp_avg_sq exists until the freeze, and
  /// afterwards if the variance is kept.
  OnebitAdam(comm::Communicator& comm, const ParameterLayout& layout,
             const OnebitAdamOptions& options);
  ~OnebitAdam() override;
};

}  // namespace thinwire::optim
