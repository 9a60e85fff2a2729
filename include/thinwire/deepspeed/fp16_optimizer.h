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

/// Which of DeepSpeed's FP16 wrappers.
enum class Fp16Wrapper {
  kFused,    ///< FP16_Optimizer: every group is one flat tensor.
  kUnfused,  ///< FP16_UnfusedOptimizer: tensors as they are.
};

/// Settings of Fp16Optimizer.
struct Fp16Options {
  precision::LossScalerOptions loss_scale{};  ///< Of wrapper_loss_scaler().
  Fp16Wrapper wrapper = Fp16Wrapper::kFused;
  /// To which L2 norm gradients are clipped; finite, >= 0; 0: never.
  double max_grad_norm = 0;
  /// Exact averages: each rank divides by the number of ranks before the sum.
  bool prescale = false;
  /// Without prescale: the part of the division that comes before the sum,
  /// finite, > 0.
  double predivide = 1;

  /// Throws Error(kInvalidArgument) naming the field, its range and its value.
  void validate() const;
};

/// The layout that an optimizer wrapped so works on: the parameters' own, but
/// with kFused, where every group is one tensor. Throws Error(kInvalidArgument)
/// unless kFused finds parameters in the order of their groups.
[[nodiscard]] ParameterLayout wrapped_layout(const ParameterLayout& layout,
                                             Fp16Wrapper wrapper);

/// DeepSpeed's FP16 wrappers, operation by operation, with what is wrong in
/// them: gradients are unscaled and clipped by the scale of the next step, in
/// compressed steps every rank clips by its own norm, and the unfused wrapper
/// reports a norm that is still scaled. fp16 parameters and gradients, fp32
/// masters. For comparison: exact means are gathered whole, and nothing is
/// averaged early. docs/algorithms/mixed-precision.md has the formulas.
class Fp16Optimizer final : public precision::LowPrecisionOptimizer {
 public:
  /// Collective: takes the reference's step with gradients of zero. `optimizer`
  /// is of wrapped_layout(layout, options.wrapper); `initial` has layout.size()
  /// elements of fp32, fp16 or bf16, from which masters are made. Throws
  /// Error(kInvalidArgument). `comm` must outlive this object.
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
  /// fp16 alone.
  [[nodiscard]] bool takes_gradients(DType dtype) const noexcept override {
    return dtype == DType::kFloat16;
  }

  using optim::Optimizer::step;
  /// `params` and `grads` are fp16, layout.size() elements; input.loss_scale
  /// has to be 1. Gradients arrive multiplied by loss_scale().
  optim::StepReport step(const optim::StepInput& input) override;
  using optim::Optimizer::groups;
  [[nodiscard]] optim::ParameterGroups& groups() override {
    return optimizer_->groups();
  }
  [[nodiscard]] optim::Progress progress() const override;
  /// The optimizer's, with the array masters [n] and the loss scale's numbers.
  [[nodiscard]] optim::State state() const override;
  [[nodiscard]] Adoption adopt(StateDict state) override;
  /// Its optimizer's: DeepSpeed's low-bit ones forget some of it.
  optim::Notes load_state_dict(const StateDict& state) override;
  void require_owner(const StateDict& state) const override {
    optimizer_->require_owner(state);
  }

  /// Sees the overflow flags that ranks exchange from now on; null: nobody.
  /// Must outlive its use.
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
  std::int64_t skipped_ = 0;  // without the optimizer's knowledge
  Buffer masters_;
  std::vector<float> grads_;
  exchange::WireObserver* observer_ = nullptr;
};

}  // namespace thinwire::deepspeed
