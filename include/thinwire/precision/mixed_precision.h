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
  DType dtype = DType::kFloat16;  ///< Of the parameters: fp16 or bf16.
  /// Of the parameters that are updated: kFloat32, or `dtype`: then the
  /// parameters are their own masters, rounded at every step. That takes an
  /// optimizer which can (exact Adam).
  DType master_dtype = DType::kFloat32;
  /// Used only with kFloat16; bf16 has the range of fp32 and needs no scale.
  LossScalerOptions loss_scale{};

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  void validate() const;
};

/// Parameters and gradients of 16 bits around any optimizer, which updates fp32
/// masters (Micikevicius et al., arXiv:1710.03740). One pass over memory finds
/// overflows and the norm, a second one unscales, clips, updates and rounds to
/// 16 bits: 30 bytes per parameter with Adam.
///
/// A gradient that is not finite on any rank skips the step on all ranks, in
/// every phase: masters, states, residuals and counters stay. With fp16 the
/// loss scale then falls; it grows after a while without overflows. With bf16,
/// whose ranks have no scale to agree on, a local step of 0/1 Adam exchanges
/// nothing: the rank concerned leaves it out (ZeroOneAdam). Departures
/// from DeepSpeed: docs/algorithms/mixed-precision.md.
///
/// Some parameters may be fp32 (View::joined), the last ones of the layout:
/// they are given the masters as they are, and their gradients stay fp32. The
/// optimizer is an ExpertParallel that knows how many these are.
///
///   auto params = ...;  // a View of fp16
///   MixedPrecision optimizer(comm, layout, std::move(adam), params, {});
///   ... gradients of loss * optimizer.loss_scale() ...
///   optimizer.step(params, grads);
class MixedPrecision final : public LowPrecisionOptimizer {
 public:
  /// Local. `optimizer` is of the same layout; `initial` has layout.size()
  /// elements of fp32, fp16 or bf16, from which masters are made: 4 bytes per
  /// parameter. Throws Error(kInvalidArgument). `comm` must outlive this
  /// object.
  MixedPrecision(comm::Communicator& comm, const ParameterLayout& layout,
                 std::unique_ptr<optim::Optimizer> optimizer, ConstView initial,
                 const MixedPrecisionOptions& options = {});
  ~MixedPrecision() override;

  [[nodiscard]] double loss_scale() const noexcept override;
  void set_loss_scale(double scale) override;
  [[nodiscard]] ConstView masters() const noexcept override;
  void set_masters(ConstView params) override;
  void write_params(View params) const override;
  /// fp32, fp16 and bf16.
  [[nodiscard]] bool takes_gradients(DType dtype) const noexcept override;

  using Optimizer::step;
  /// `params` is of options.dtype, `grads` fp32 (accumulated) or of 16 bits
  /// (and, as `params`, fp32 at the end, if there are such parameters),
  /// both layout.size() elements. Gradients arrive multiplied by loss_scale()
  /// and input.loss_scale; step() divides both out before clipping. Throws
  /// Error(kNonFinite) on all ranks, naming the first parameter that
  /// overflowed, its rank and the last good step, where the loss scale is at
  /// its minimum and is to stop there.
  optim::StepReport step(const optim::StepInput& input) override;
  using Optimizer::groups;
  [[nodiscard]] optim::ParameterGroups& groups() override;
  [[nodiscard]] optim::Progress progress() const override;
  [[nodiscard]] double residual_ratio() const override;
  [[nodiscard]] optim::EarlyGradients* early() override;
  using Optimizer::local_steps;
  /// Those of the masters, which are then rounded into the parameters: also if
  /// all steps of the optimizer exchange.
  [[nodiscard]] optim::LocalSteps* local_steps() override;
  using Optimizer::freeze;
  [[nodiscard]] optim::FreezeStage* freeze() override;
  /// The optimizer's, with the array masters [n], the same on all ranks: within
  /// local steps those of the last exchange; and with fp16 the loss scale's
  /// numbers.
  [[nodiscard]] optim::State state() const override;
  /// A state without a loss scale leaves the one of options. The parameters of
  /// 16 bits stay the caller's: write_params() rounds them anew.
  [[nodiscard]] Adoption adopt(StateDict state) override;
  void require_owner(const StateDict& state) const override;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::precision
