// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/optim/compression_options.h"
#include "thinwire/optim/low_bit_optimizer.h"
#include "thinwire/optim/run_length.h"

namespace thinwire::optim {

/// Settings of ZeroOneAdam, for a run of T steps:
///   ZeroOneAdam opt(comm, layout, {.learning_rate = 1e-3, .total_steps = T});
struct ZeroOneAdamOptions {
  double learning_rate = 1e-3;  ///< Step size, finite, >= 0.
  double beta1 = 0.9;           ///< Momentum decay per step, in [0, 1).
  double beta2 = 0.999;         ///< Variance decay per update, in [0, 1).
  double epsilon = 1e-8;        ///< Positive; keeps the denominator above 0.
  double weight_decay = 0;      ///< Decoupled (AdamW), finite, >= 0.
  bool bias_correction = true;
  bool epsilon_inside_sqrt = false;  ///< Use sqrt(v + eps).
  /// One entry per group of the layout, or none if all groups are alike.
  std::vector<MaskedGroup> groups{};

  /// Steps of the run, >= 1. This determines those of the next five options
  /// that are unset (zero_one_stages_of_run in run_length.h). Without
  /// total_steps the defaults are DeepSpeed's: 100000, 16, 32678, 16 and exact
  /// averages, for runs of several 100,000 steps. After a load, options that
  /// are set take effect, and unset ones are replaced by the state's.
  std::optional<std::int64_t> total_steps{};
  /// Last step in which the variance may change, >= 1.
  std::optional<std::int64_t> var_freeze_step{};
  /// kappa, >= 1: number of variance updates after which their interval
  /// doubles.
  std::optional<std::int64_t> var_update_scaler{};
  /// alpha, >= 1: number of steps after which the interval between syncs
  /// doubles.
  std::optional<std::int64_t> local_step_scaler{};
  /// Longest interval between syncs in steps, >= 1.
  std::optional<std::int64_t> local_step_clipper{};

  /// Bits per element, 0 (exact), 4 or 8, in which steps that update the
  /// variance average gradients. 8 bits send a quarter of the bytes of an fp32
  /// average, and 4 bits an eighth. The rounding error of the gradients, times
  /// 1 - beta1, is added to the residuals of the momentum.
  std::optional<int> warmup_bits{};

  CompressionOptions compression{};  ///< Compressed steps and the exchange.

  /// Checks the options. The layout determines the number of groups and the
  /// length of masks. Throws Error(kInvalidArgument) naming the field, its
  /// range and its value.
  void validate(const ParameterLayout& layout) const;

  bool operator==(const ZeroOneAdamOptions&) const = default;
};

/// Returns the stages for `options`, in which the rule fills unset fields.
[[nodiscard]] constexpr ZeroOneStages zero_one_stages_of(
    const ZeroOneAdamOptions& options) {
  const ZeroOneStages rule = options.total_steps
                                 ? zero_one_stages_of_run(*options.total_steps)
                                 : ZeroOneStages();
  return {
      .var_freeze_step = options.var_freeze_step.value_or(rule.var_freeze_step),
      .var_update_scaler =
          options.var_update_scaler.value_or(rule.var_update_scaler),
      .local_step_scaler =
          options.local_step_scaler.value_or(rule.local_step_scaler),
      .local_step_clipper =
          options.local_step_clipper.value_or(rule.local_step_clipper),
      .warmup_bits = options.warmup_bits.value_or(rule.warmup_bits)};
}

/// Adam that exchanges one bit per element, and in most steps nothing.
///
/// Until var_freeze_step the variance is updated, at growing intervals. In the
/// steps between, ranks average momentum with one bit per element. Afterwards
/// ranks take local steps and accumulate their updates. At growing intervals
/// they average those updates with one bit per element (a sync). Between syncs
/// parameters differ from rank to rank. synchronize() makes them equal for
/// evaluation and saving.
///
/// After the freeze every step computes the parameters from those of the last
/// sync, so changes that the caller has made since then are lost.
///
/// A flat local step exchanges nothing, except that with fp16 the ranks agree
/// on whether gradients are finite. A rank with a non-finite gradient in a
/// local step does not change its own parameters. The next sync is applied, and
/// reports that rank as StepReport::nonfinite_rank.
///
/// Source: Lu et al., "0/1 Adam", arXiv:2202.06009, Algorithm 1. Departures
/// (bias correction, denominator floor, block scales, calibrated clipping,
/// weight decay outside of the accumulated update):
/// docs/algorithms/zero-one-adam.md.
class ZeroOneAdam final : public LowBitOptimizer {
 public:
  /// Creates the optimizer under the conditions of OnebitAdam's constructor.
  /// Collective. `comm` must outlive this object.
  ///
  /// Memory per parameter: 16 bytes before the freeze and 20 after it, plus 4/W
  /// bytes for the chunk that this rank serves.
  ///
  /// State: the arrays and scalars of LowBitOptimizer, and the array
  /// denominator [n]. The array exp_avg_sq [n] exists until the freeze. After
  /// it there are origin [n], the parameters at the last sync, and, between
  /// syncs, momentum_accumulator [n], this rank's updates since then.
  /// docs/algorithms/zero-one-adam.md lists the scalars.
  ZeroOneAdam(comm::Communicator& comm, const ParameterLayout& layout,
              const ZeroOneAdamOptions& options);
  ~ZeroOneAdam() override;
};

}  // namespace thinwire::optim
