// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/precision/loss_scaler.h"
#include "thinwire/precision/low_precision_optimizer.h"

namespace thinwire::precision {

/// Settings of MixedPrecision.
struct MixedPrecisionOptions {
  DType dtype = DType::kFloat16;  ///< Dtype of the parameters: fp16 or bf16.
  /// Dtype of the values that are updated: kFloat32 or `dtype`. With `dtype`,
  /// parameters are their own masters and are rounded at every step, which only
  /// exact Adam supports.
  DType master_dtype = DType::kFloat32;
  /// Used only with kFloat16, because bf16 has the range of fp32 and needs no
  /// scale.
  LossScalerOptions loss_scale{};

  /// Checks the options. Throws Error(kInvalidArgument) with the field, its
  /// range and its value.
  void validate() const;
};

/// Wraps any optimizer for 16-bit parameters and gradients; the optimizer
/// updates fp32 masters (Micikevicius et al., arXiv:1710.03740). One pass over
/// memory finds overflows and the norm. A second pass unscales, clips, updates
/// and rounds to 16 bits. With Adam this moves 30 bytes per parameter.
///
/// A non-finite gradient on any rank skips the step on all ranks, in every
/// phase. Masters, states, residuals and counters do not change. With fp16 the
/// loss scale then falls; it grows again after a number of steps without
/// overflow. With bf16 ranks have no scale to agree on, so that a local step of
/// 0/1 Adam exchanges nothing. In that case only the rank with the non-finite
/// gradient skips the step (ZeroOneAdam). Departures from DeepSpeed:
/// docs/algorithms/mixed-precision.md.
///
/// Some parameters may be fp32 (View::joined), the last ones of the layout.
/// They receive the masters unrounded, and their gradients stay fp32. The
/// optimizer is then an ExpertParallel that knows their number.
///   auto params = ...;  // a View of fp16
///   MixedPrecision optimizer(comm, layout, std::move(adam), params, {});
///   ... gradients of loss * optimizer.loss_scale() ...
///   optimizer.step(params, grads);
class MixedPrecision final : public LowPrecisionOptimizer {
 public:
  /// Creates masters from `initial`, 4 bytes per parameter. `optimizer` must
  /// have the same layout. `initial` has layout.size() elements of fp32, fp16
  /// or bf16. `comm` must outlive this object. Throws Error(kInvalidArgument).
  /// Local.
  MixedPrecision(comm::Communicator& comm, const ParameterLayout& layout,
                 std::unique_ptr<optim::Optimizer> optimizer, ConstView initial,
                 const MixedPrecisionOptions& options = {});
  ~MixedPrecision() override;

  [[nodiscard]] double loss_scale() const noexcept override;
  void set_loss_scale(double scale) override;
  [[nodiscard]] ConstView masters() const noexcept override;
  void set_masters(ConstView params) override;
  void write_params(View params) const override;
  /// Returns whether `dtype` is fp32, fp16 or bf16.
  [[nodiscard]] bool takes_gradients(DType dtype) const noexcept override;

  using Optimizer::step;
  /// Runs a step. `params` has options.dtype; `grads` is 16-bit, or fp32 if
  /// accumulated. Both have layout.size() elements, and the last parameters may
  /// be fp32 in both. Gradients are multiplied by loss_scale() and
  /// input.loss_scale, and step() divides by both before clipping. Throws
  /// Error(kNonFinite) on all ranks if the loss scale is at its minimum and
  /// options.loss_scale requires a stop there. The error names the first
  /// parameter that overflowed, its rank and the last good step.
  optim::StepReport step(const optim::StepInput& input) override;
  using Optimizer::groups;
  [[nodiscard]] optim::ParameterGroups& groups() override;
  [[nodiscard]] optim::Progress progress() const override;
  [[nodiscard]] double residual_ratio() const override;
  [[nodiscard]] optim::EarlyGradients* early() override;
  using Optimizer::local_steps;
  /// Returns the local steps of the masters, which are then rounded to the
  /// parameters. With masters this is never null, even if all steps of the
  /// optimizer exchange.
  [[nodiscard]] optim::LocalSteps* local_steps() override;
  using Optimizer::freeze;
  [[nodiscard]] optim::FreezeStage* freeze() override;
  /// Returns the optimizer's state and the array masters [n], which is equal on
  /// all ranks. During local steps it holds the masters of the last exchange.
  /// With fp16 the state also has the loss scale and its counters.
  [[nodiscard]] optim::State state() const override;
  /// Adopts a state. If it has no loss scale, that of the options is kept. The
  /// caller then restores the 16-bit parameters with write_params(), which
  /// rounds the masters again.
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::precision
