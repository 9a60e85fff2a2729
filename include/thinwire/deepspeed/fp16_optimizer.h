// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/deepspeed/optimizers.h"
#include "thinwire/exchange/compressed_all_reduce.h"
#include "thinwire/precision/loss_scaler.h"
#include "thinwire/precision/low_precision_optimizer.h"

namespace thinwire::deepspeed {

/// DeepSpeed's two FP16 wrappers.
enum class Fp16Wrapper {
  kFused,    ///< FP16_Optimizer: every group is one flat tensor.
  kUnfused,  ///< FP16_UnfusedOptimizer: tensors are separate.
};

/// Settings of Fp16Optimizer.
struct Fp16Options {
  precision::LossScalerOptions loss_scale{};  ///< See wrapper_loss_scaler().
  Fp16Wrapper wrapper = Fp16Wrapper::kFused;
  /// L2 norm to which gradients are clipped, finite, >= 0; 0 for no clipping.
  double max_grad_norm = 0;
  /// Whether each rank divides by the number of ranks before the sum of an
  /// exact average.
  bool prescale = false;
  /// Part of the division that precedes the sum if `prescale` is false; finite,
  /// > 0.
  double predivide = 1;

  /// Checks the options. Throws Error(kInvalidArgument) with the field, its
  /// range and its value.
  void validate() const;
};

/// Returns the layout for the wrapped optimizer, which is `layout` or, with
/// kFused, has one tensor per group. With kFused, throws
/// Error(kInvalidArgument) unless parameters are in the order of their groups.
[[nodiscard]] ParameterLayout wrapped_layout(const ParameterLayout& layout,
                                             Fp16Wrapper wrapper);

/// DeepSpeed's FP16 wrappers, operation by operation, including their mistakes.
/// Gradients are unscaled and clipped by the scale of the next step. In
/// compressed steps every rank clips by its own norm. The unfused wrapper
/// reports a norm that is still scaled. Parameters and gradients are fp16,
/// masters fp32. It is meant for comparisons: every rank holds all exact means,
/// and none is averaged early. docs/algorithms/mixed-precision.md has the
/// formulas.
class Fp16Optimizer final : public precision::LowPrecisionOptimizer {
 public:
  /// Takes DeepSpeed's initial step with gradients of zero. Collective.
  /// `optimizer` has the layout wrapped_layout(layout, options.wrapper).
  /// `initial` has layout.size() elements of fp32, fp16 or bf16, from which
  /// masters are made. `comm` must outlive this object. Throws
  /// Error(kInvalidArgument).
  Fp16Optimizer(comm::Communicator& comm, const ParameterLayout& layout,
                std::unique_ptr<deepspeed::Optimizer> optimizer,
                ConstView initial, const Fp16Options& options = {});

  [[nodiscard]] double loss_scale() const noexcept override {
    return scaler_.scale();
  }
  void set_loss_scale(double scale) override { scaler_.set_scale(scale); }
  [[nodiscard]] ConstView masters() const noexcept override {
    return masters_.view();
  }
  void set_masters(ConstView params) override;
  void write_params(View params) const override;
  /// Returns whether `dtype` is fp16.
  [[nodiscard]] bool takes_gradients(DType dtype) const noexcept override {
    return dtype == DType::kFloat16;
  }

  using optim::Optimizer::step;
  /// Runs a step. `params` and `grads` are fp16, layout.size() elements.
  /// Gradients arrive multiplied by loss_scale(), and input.loss_scale must be
  /// 1.
  optim::StepReport step(const optim::StepInput& input) override;
  using optim::Optimizer::groups;
  [[nodiscard]] optim::ParameterGroups& groups() override {
    return optimizer_->groups();
  }
  [[nodiscard]] optim::Progress progress() const override;
  /// Returns the optimizer's state, the array masters [n], and the loss scale
  /// with its counters.
  [[nodiscard]] optim::State state() const override;
  [[nodiscard]] Adoption adopt(StateDict state) override;
  /// Loads a state like the wrapped optimizer. DeepSpeed's low-bit optimizers
  /// discard part of it.
  optim::Notes load_state_dict(const StateDict& state) override;
  void require_owner(const StateDict& state) const override {
    optimizer_->require_owner(state);
  }

  /// Sets the observer of the overflow flags that ranks exchange from now on,
  /// or none if null. It must outlive its use.
  void set_observer(exchange::WireObserver* observer) noexcept {
    observer_ = observer;
  }

 private:
  void average(std::span<Half> values) const;
  [[nodiscard]] bool overflows(bool is_averaged) const;
  [[nodiscard]] std::span<const float> gradient_of(const Parameter& p) const;
  [[nodiscard]] double scaled_norm() const;
  [[nodiscard]] double combined_scale(double total) const;

  comm::Communicator& comm_;
  ParameterLayout layout_;
  ParameterLayout wrapped_;
  std::unique_ptr<deepspeed::Optimizer> optimizer_;
  Fp16Options options_;
  precision::LossScaler scaler_;
  std::int64_t skipped_ = 0;  // skipped steps that the optimizer has not seen
  Buffer masters_;
  std::vector<float> grads_;
  exchange::WireObserver* observer_ = nullptr;
};

}  // namespace thinwire::deepspeed
