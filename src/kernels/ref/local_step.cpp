// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/local_step.h"

#include "kernels/checks.h"
#include "kernels/ref/floats.h"
#include "kernels/ref/signs.h"

namespace thinwire::kernels::ref {

void local_step(const LocalStepArrays& a, float origin_scale,
                const AdamCoefficients& c) {
  require_grads(a.grads);
  require_low_precision(a.low_precision, a.grads.size());
  visit_floats(a.grads, [&](const auto* grads) {
    for (std::size_t i = 0; i < a.grads.size(); ++i) {
      float m = a.mean.words != nullptr ? value_of(a.mean, i) : a.exp_avg[i];
      m = masked(a.active, i) ? 0.0f : next_momentum(m, to_float(grads[i]), c);
      float u = a.from_zero ? 0.0f : a.accumulated[i];
      u = u +
          c.minus_learning_rate * ((m * c.exp_avg_scale) / a.denominator[i]);
      a.exp_avg[i] = m;
      a.accumulated[i] = u;
      a.params[i] = a.origin[i] * origin_scale + u;
      store_low_precision(a.low_precision, i, a.params[i]);
    }
  });
}

void sync_update(Signs mean, const std::uint32_t* active, const SyncArrays& a,
                 float origin_scale) {
  require_low_precision(a.low_precision, a.size);
  for (std::size_t i = 0; i < a.size; ++i) {
    const float b = masked(active, i) ? 0.0f : value_of(mean, i);
    a.origin[i] = a.origin[i] * origin_scale + b / a.denominator[i];
    a.params[i] = a.origin[i];
    store_low_precision(a.low_precision, i, a.params[i]);
  }
}

}  // namespace thinwire::kernels::ref
