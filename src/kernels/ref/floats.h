// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>

#include "core/visit_floats.h"
#include "thinwire/core/view.h"
#include "thinwire/kernels/adam.h"

/// Helpers that the reference kernels share.
namespace thinwire::kernels::ref {

using thinwire::store_rounded;
using thinwire::to_float;
using thinwire::visit_floats;

/// Writes `value` to element i of `low_precision`, unless the view is empty.
inline void store_low_precision(const View& low_precision, std::size_t i,
                                float value) {
  if (low_precision.empty()) return;
  visit_floats(low_precision, [&](auto* p) { store_rounded(value, p + i); });
}

/// Returns m * beta1 + one_minus_beta1 * (grad * grad_scale).
inline float next_momentum(float m, float grad, const AdamCoefficients& c) {
  const float g = grad * c.grad_scale;
  return m * c.beta1 + c.one_minus_beta1 * g;
}

/// Returns v * beta2 + (one_minus_beta2 * g) * g for a gradient that is already
/// scaled.
inline float next_variance(float v, float g, const AdamCoefficients& c) {
  return v * c.beta2 + (c.one_minus_beta2 * g) * g;
}

/// Returns sqrt(v * exp_avg_sq_scale) + eps, or the same with eps inside the
/// root.
inline float next_denominator(float v, const AdamCoefficients& c) {
  const float scaled = v * c.exp_avg_sq_scale;
  return c.epsilon_inside_sqrt ? std::sqrt(scaled + c.epsilon)
                               : std::sqrt(scaled) + c.epsilon;
}

/// Returns (m * exp_avg_scale) / d + decay * p.
inline float update_of(float p, float m, float d, const AdamCoefficients& c) {
  const float u = (m * c.exp_avg_scale) / d;
  return c.decoupled_decay != 0 ? u + c.decoupled_decay * p : u;
}

/// Returns p + minus_learning_rate * u, with u = (m * exp_avg_scale) / d +
/// decay * p.
inline float next_param(float p, float m, float d, const AdamCoefficients& c) {
  return p + c.minus_learning_rate * update_of(p, m, d, c);
}

}  // namespace thinwire::kernels::ref
