// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "thinwire/optim/adam.h"

namespace thinwire::deepspeed {

/// One step of torch.optim.Adam or AdamW for one group: its numbers, formed in
/// double and rounded once.
struct TorchAdamStep {
  float decay = 1;     ///< Parameters are multiplied by it first (AdamW).
  float l2_decay = 0;  ///< Times the parameter, added to the gradient (Adam).
  float beta1 = 0;
  float one_minus_beta1 = 1;
  float beta2 = 0;
  float one_minus_beta2 = 1;
  float root_of_correction2 = 1;
  float epsilon = 0;
  float minus_step_size = 0;

  /// Step number `step` (1, 2, ...). Throws Error(kInvalidArgument) for options
  /// that torch's Adam does not have.
  [[nodiscard]] static TorchAdamStep of(const optim::AdamOptions& options,
                                        double learning_rate,
                                        std::int64_t step);
};

/// Arrays of one size; all but `grads` are updated.
struct TorchAdamArrays {
  std::span<float> params;
  std::span<float> exp_avg;
  std::span<float> exp_avg_sq;
  std::span<const float> grads;
};

/// In the order of torch's operations, every one of which is rounded: other
/// last bits than those of kernels::adam.
void torch_adam(const TorchAdamStep& step, const TorchAdamArrays& arrays);

}  // namespace thinwire::deepspeed
