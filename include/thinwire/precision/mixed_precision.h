// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "thinwire/comm/communicator.h"
#include "thinwire/compress/compressed_all_reduce.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/semantics.h"
#include "thinwire/precision/loss_scaler.h"

namespace thinwire::precision {

/// Which of DeepSpeed's FP16 wrappers kDeepSpeed follows.
enum class Wrapper {
  kFused,    ///< FP16_Optimizer: every group is one flat tensor.
  kUnfused,  ///< FP16_UnfusedOptimizer: tensors as they are.
};

/// Settings of MixedPrecision.
struct MixedPrecisionOptions {
  DType dtype = DType::kFloat16;  ///< Of the parameters: fp16 or bf16.
  /// Of the parameters that are updated: kFloat32, or `dtype`: then the
  /// parameters are their own masters, rounded at every step. That takes an
  /// optimizer which can (exact Adam).
  DType master_dtype = DType::kFloat32;
  /// In force with fp16; bf16 has the range of fp32 and needs no scale.
  LossScalerOptions loss_scale{};

  /// With kDeepSpeed the wrapper clips and unscales, with the scale that is
  /// already the next step's; parameters and gradients must be fp16.
  optim::Semantics semantics = optim::Semantics::kCorrected;
  Wrapper wrapper = Wrapper::kFused;  ///< kDeepSpeed only.
  /// kDeepSpeed only, elsewhere the optimizer clips; finite, >= 0; 0: never.
  double max_grad_norm = 0;

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  void validate() const;
};

/// The layout that an optimizer wrapped with these options works on: the
/// parameters' own but with kDeepSpeed and kFused, where every group is one.
[[nodiscard]] ParameterLayout wrapped_layout(
    const ParameterLayout& layout, const MixedPrecisionOptions& options);

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
///   auto params = ...;  // a View of fp16
///   MixedPrecision optimizer(comm, layout, std::move(adam), params, {});
///   ... gradients of loss * optimizer.loss_scale() ...
///   optimizer.step(params, grads);
class MixedPrecision final : public optim::Optimizer {
 public:
  /// Local. `optimizer` is of wrapped_layout(layout, options); `initial` has
  /// layout.size() elements of fp32, fp16 or bf16, from which masters are made:
  /// 4 bytes per parameter. Throws Error(kInvalidArgument). `comm` must outlive
  /// this object. With kDeepSpeed collective: takes the reference's step with
  /// gradients of zero.
  MixedPrecision(comm::Communicator& comm, const ParameterLayout& layout,
                 std::unique_ptr<optim::Optimizer> optimizer, ConstView initial,
                 const MixedPrecisionOptions& options = {});
  ~MixedPrecision() override;

  /// What the next loss is to be multiplied by, in fp32; 1 with bf16.
  [[nodiscard]] double loss_scale() const noexcept;
  /// fp32 parameters, layout.size() elements; empty where the parameters are
  /// their own masters.
  [[nodiscard]] ConstView masters() const noexcept;
  /// Makes masters of these parameters, whatever they were: after weights were
  /// loaded from elsewhere. Local; all ranks alike. (0/1 Adam forgets them at
  /// its next step after the freeze.)
  void set_masters(ConstView params);
  /// Rounds the masters to `params`, of options.dtype; throws
  /// Error(kInvalidArgument) for another dtype or size.
  void write_params(View params) const;

  using Optimizer::step;
  /// `params` is of options.dtype, `grads` fp32 (accumulated) or of 16 bits
  /// (with kDeepSpeed fp16), both layout.size() elements; they are loss_scale()
  /// * input.loss_scale times too long. Throws Error(kNonFinite) on all ranks,
  /// naming the first parameter that overflowed, its rank and the last good
  /// step, where the loss scale is at its minimum and is to stop there.
  optim::StepReport step(const optim::StepInput& input) override;
  void reduce_early(View grads, Range range) override;
  [[nodiscard]] bool reduces_early() const noexcept override;
  void synchronize(View params) override;
  [[nodiscard]] std::int64_t steps() const noexcept override;
  [[nodiscard]] std::int64_t skipped_steps() const noexcept override;
  [[nodiscard]] optim::Phase phase() const noexcept override;
  using Optimizer::set_learning_rate;
  void set_learning_rate(std::size_t group, double learning_rate) override;
  [[nodiscard]] double learning_rate(std::size_t group) const override;
  [[nodiscard]] std::size_t num_groups() const noexcept override;
  /// The optimizer's, with the array masters [n] and the loss scale's numbers.
  [[nodiscard]] StateDict state_dict() const override;
  /// The parameters of 16 bits are the caller's: write_params() rounds them
  /// anew.
  void load_state_dict(const StateDict& state) override;

  /// kDeepSpeed: sees the overflow flags that ranks exchange from now on; null:
  /// nobody. Must outlive its use.
  void set_observer(compress::WireObserver* observer) noexcept;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::precision
