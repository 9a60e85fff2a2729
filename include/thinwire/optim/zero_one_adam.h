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

/// Settings of ZeroOneAdam; for a run of T steps:
///   ZeroOneAdam opt(comm, layout, {.learning_rate = 1e-3, .total_steps = T});
struct ZeroOneAdamOptions {
  double learning_rate = 1e-3;  ///< Step size, finite, >= 0.
  double beta1 = 0.9;           ///< Momentum decay per step, in [0, 1).
  double beta2 = 0.999;         ///< Variance decay per update, in [0, 1).
  double epsilon = 1e-8;        ///< Keeps the denominator above 0, > 0.
  double weight_decay = 0;      ///< Decoupled (AdamW), finite, >= 0.
  bool bias_correction = true;
  bool epsilon_inside_sqrt = false;  ///< sqrt(v + eps), not sqrt(v) + eps.
  /// One entry per group of the layout, or empty: all alike.
  std::vector<MaskedGroup> groups{};

  /// Of the run, >= 1: the next four follow from it where they are not given
  /// (zero_one_stages_of_run in run_length.h). Without it they are DeepSpeed's:
  /// 100000, 16, 32678, 16, for runs of several 100,000 steps. Those that are
  /// given count after a load, too; those that are not give way to the state's.
  std::optional<std::int64_t> total_steps{};
  /// The last step in which the variance may change, >= 1.
  std::optional<std::int64_t> var_freeze_step{};
  /// kappa: after so many variance updates their interval doubles; >= 1.
  std::optional<std::int64_t> var_update_scaler{};
  /// alpha: after so many steps the interval between syncs doubles; >= 1.
  std::optional<std::int64_t> local_step_scaler{};
  /// The longest interval between syncs, >= 1.
  std::optional<std::int64_t> local_step_clipper{};

  /// No denominator is below this fraction of its block's RMS; finite, >= 0;
  /// 0: no floor.
  double denom_floor = 0.3;
  DType residual_dtype = DType::kFloat32;  ///< kFloat32 or kBFloat16.
  /// verify_every compares at the first sync after so many steps.
  ExchangeOptions exchange{};

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  /// The layout says how many groups there are and how long masks must be.
  void validate(const ParameterLayout& layout) const;

  bool operator==(const ZeroOneAdamOptions&) const = default;
};

/// Adam that exchanges one bit per element, and in most steps nothing.
///
/// Until var_freeze_step the variance is updated, exactly, at intervals that
/// grow, and momentum is averaged with one bit per element in between. Then
/// ranks take local steps and add up their updates; at intervals that grow they
/// average those with one bit per element (a sync). Between syncs parameters
/// differ from rank to rank: synchronize() makes them equal for evaluation and
/// saving.
///
/// After the freeze a step writes the parameters anew, from those of the last
/// sync: what the caller changed in between is lost.
///
/// A local step exchanges nothing, so a rank whose gradient is not finite there
/// leaves its own parameters alone; the next sync reports it as
/// StepReport::nonfinite_rank of a step that was applied.
///
/// Source: Lu et al., "0/1 Adam", arXiv:2202.06009, Algorithm 1. Departures
/// (bias correction, denominator floor, block scales, calibrated clipping,
/// weight decay outside of the accumulated update): docs/algorithms.md.
class ZeroOneAdam final : public LowBitOptimizer {
 public:
  /// Collective, as OnebitAdam's. Holds 16 bytes per parameter before the
  /// freeze and 20 after it, and 4/W for the chunk it serves. `comm` must
  /// outlive this object.
  ///
  /// State: those of LowBitOptimizer; arrays exp_avg_sq [n] (until the freeze),
  /// denominator [n], from the freeze on origin [n] (parameters at the last
  /// sync) and momentum_accumulator [n] (this rank's updates since), lrs and
  /// decay (per group); scalars var_interval, var_counter, var_updates,
  /// local_step_interval, local_step_counter, local_steps.
  ZeroOneAdam(comm::Communicator& comm, const ParameterLayout& layout,
              const ZeroOneAdamOptions& options);
  ~ZeroOneAdam() override;
};

}  // namespace thinwire::optim
