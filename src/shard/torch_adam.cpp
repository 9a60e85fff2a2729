// SPDX-License-Identifier: Apache-2.0
#include "shard/torch_adam.h"

#include <cmath>

#include "core/require.h"

namespace thinwire::shard {

TorchAdamStep TorchAdamStep::of(const optim::AdamOptions& o,
                                double learning_rate, std::int64_t step) {
  require(!o.epsilon_inside_sqrt, "epsilon_inside_sqrt",
          "false with deepspeed semantics", o.epsilon_inside_sqrt);
  const auto correction = [&](double beta) {
    return o.bias_correction ? 1 - std::pow(beta, static_cast<double>(step))
                             : 1.0;
  };
  const double decay = learning_rate * o.weight_decay;
  return {
      .decay = o.decoupled_decay ? static_cast<float>(1 - decay) : 1.0f,
      .l2_decay = o.decoupled_decay ? 0.0f : static_cast<float>(o.weight_decay),
      .beta1 = static_cast<float>(o.beta1),
      .one_minus_beta1 = static_cast<float>(1 - o.beta1),
      .beta2 = static_cast<float>(o.beta2),
      .one_minus_beta2 = static_cast<float>(1 - o.beta2),
      .root_of_correction2 = static_cast<float>(std::sqrt(correction(o.beta2))),
      .epsilon = static_cast<float>(o.epsilon),
      .minus_step_size =
          static_cast<float>(-(learning_rate / correction(o.beta1)))};
}

void torch_adam(const TorchAdamStep& c, const TorchAdamArrays& arrays) {
  for (std::size_t i = 0; i < arrays.params.size(); ++i) {
    float p = arrays.params[i] * c.decay;
    float g = arrays.grads[i];
    // Not where it is 0: torch leaves it out, and 0 times inf is NaN.
    if (c.l2_decay != 0) g += c.l2_decay * p;
    const float m = arrays.exp_avg[i] * c.beta1 + c.one_minus_beta1 * g;
    const float v = arrays.exp_avg_sq[i] * c.beta2 + c.one_minus_beta2 * g * g;
    const float d = std::sqrt(v) / c.root_of_correction2 + c.epsilon;
    p += c.minus_step_size * m / d;
    arrays.params[i] = p;
    arrays.exp_avg[i] = m;
    arrays.exp_avg_sq[i] = v;
  }
}

}  // namespace thinwire::shard
