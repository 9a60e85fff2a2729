// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/adam.h"

#include <algorithm>
#include <cmath>

#include "kernels/checks.h"
#include "kernels/ref/floats.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::kernels::ref {
namespace {

template <class G>
void adam_of(const AdamArrays& arrays, const G* grads,
             const AdamCoefficients& c) {
  for (std::size_t i = 0; i < arrays.grads.size(); ++i) {
    const float p = arrays.params[i];
    float g = to_float(grads[i]) * c.grad_scale;
    if (c.l2_decay != 0) g = g + c.l2_decay * p;
    const float m = arrays.exp_avg[i] * c.beta1 + c.one_minus_beta1 * g;
    const float v = next_variance(arrays.exp_avg_sq[i], g, c);
    arrays.exp_avg[i] = m;
    arrays.exp_avg_sq[i] = v;
    arrays.params[i] = next_param(p, m, next_denominator(v, c), c);
    store_low_precision(arrays.low_precision, i, arrays.params[i]);
  }
}

}  // namespace

void adam(const AdamArrays& arrays, const AdamCoefficients& c) {
  require_grads(arrays.grads);
  require_low_precision(arrays.low_precision, arrays.grads.size());
  visit_floats(arrays.grads, [&](const auto* g) { adam_of(arrays, g, c); });
}

void momentum(float* exp_avg, ConstView grads, const AdamCoefficients& c) {
  require_grads(grads);
  visit_floats(grads, [&](const auto* g) {
    for (std::size_t i = 0; i < grads.size(); ++i) {
      exp_avg[i] = next_momentum(exp_avg[i], to_float(g[i]), c);
    }
  });
}

void moments(float* exp_avg, float* exp_avg_sq, ConstView grads,
             const AdamCoefficients& c) {
  require_grads(grads);
  visit_floats(grads, [&](const auto* g) {
    for (std::size_t i = 0; i < grads.size(); ++i) {
      const float grad = to_float(g[i]);
      exp_avg[i] = next_momentum(exp_avg[i], grad, c);
      exp_avg_sq[i] = next_variance(exp_avg_sq[i], grad * c.grad_scale, c);
    }
  });
}

void frozen_update(const FrozenUpdateArrays& arrays,
                   const AdamCoefficients& c) {
  require_low_precision(arrays.low_precision, arrays.size);
  for (std::size_t i = 0; i < arrays.size; ++i) {
    arrays.params[i] = next_param(arrays.params[i], arrays.exp_avg[i],
                                  arrays.denominator[i], c);
    store_low_precision(arrays.low_precision, i, arrays.params[i]);
  }
}

void denominator(const float* exp_avg_sq, float* denominator, std::size_t size,
                 const AdamCoefficients& c) {
  for (std::size_t i = 0; i < size; ++i) {
    denominator[i] = next_denominator(exp_avg_sq[i], c);
  }
}

}  // namespace thinwire::kernels::ref
