// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/core/view.h"

namespace thinwire::kernels {

/// Coefficients of one step, computed in double and rounded to float once.
struct AdamCoefficients {
  float beta1 = 0.9f;
  float one_minus_beta1 = 0.1f;
  float beta2 = 0.999f;
  float one_minus_beta2 = 0.001f;
  float epsilon = 1e-8f;
  bool epsilon_inside_sqrt =
      false;                   ///< sqrt(v + eps) instead of sqrt(v) + eps.
  float exp_avg_scale = 1;     ///< 1 / (1 - beta1^t), or 1.
  float exp_avg_sq_scale = 1;  ///< 1 / (1 - beta2^t), or 1.
  float l2_decay = 0;          ///< Added to the gradient as l2_decay * p.
  float decoupled_decay = 0;   ///< Added to the update as decoupled_decay * p.
  float minus_learning_rate = -1e-3f;
  float grad_scale =
      1;  ///< Factor on the gradient, applied first: mean, unscaling, clipping.
};

/// Flat arrays of equal length; none overlap.
struct AdamArrays {
  float* params = nullptr;      ///< In and out.
  float* exp_avg = nullptr;     ///< In and out.
  float* exp_avg_sq = nullptr;  ///< In and out.
  ConstView grads{};            ///< fp32, fp16 or bf16; its size is the length.
  View low_precision{};  ///< Empty, or receives params rounded to fp16 or bf16.
};

/// Applies Adam / AdamW in one pass; every operation is rounded to float in
/// this order:
///   g = grad * grad_scale                 (grad widened exactly)
///   if l2_decay != 0:  g = g + l2_decay * p
///   m = m * beta1 + one_minus_beta1 * g
///   v = v * beta2 + (one_minus_beta2 * g) * g
///   d = sqrt(v * exp_avg_sq_scale) + eps   or  sqrt(v * scale + eps)
///   u = (m * exp_avg_scale) / d
///   if decoupled_decay != 0:  u = u + decoupled_decay * p
///   p = p + minus_learning_rate * u
/// Single-threaded; callers divide the arrays among threads. Moves 28 bytes per
/// parameter in fp32.
void adam(const AdamArrays& arrays, const AdamCoefficients& c);

/// Computes m = m * beta1 + one_minus_beta1 * (grad * grad_scale) for
/// grads.size() elements.
void momentum(float* exp_avg, ConstView grads, const AdamCoefficients& c);

/// Computes m and v of adam(), without l2_decay, for grads.size() elements.
void moments(float* exp_avg, float* exp_avg_sq, ConstView grads,
             const AdamCoefficients& c);

/// Arrays of an update whose variance no longer changes:
///   p = p + minus_learning_rate * ((m * exp_avg_scale) / d + decay * p)
/// `denominator` is the d of an earlier adam(). The decoupled decay is added
/// only if it is not 0.
struct FrozenUpdateArrays {
  float* params = nullptr;  ///< In and out.
  const float* exp_avg = nullptr;
  const float* denominator = nullptr;  ///< > 0 everywhere.
  View low_precision{};                ///< See AdamArrays.
  std::size_t size = 0;
};
void frozen_update(const FrozenUpdateArrays& arrays, const AdamCoefficients& c);

/// Computes d[i] = sqrt(v[i] * exp_avg_sq_scale) + eps, or the same with eps
/// inside the root. `denominator` may be `exp_avg_sq`.
void denominator(const float* exp_avg_sq, float* denominator, std::size_t size,
                 const AdamCoefficients& c);

namespace ref {
void adam(const AdamArrays& arrays, const AdamCoefficients& c);
void momentum(float* exp_avg, ConstView grads, const AdamCoefficients& c);
void moments(float* exp_avg, float* exp_avg_sq, ConstView grads,
             const AdamCoefficients& c);
void frozen_update(const FrozenUpdateArrays& arrays, const AdamCoefficients& c);
void denominator(const float* exp_avg_sq, float* denominator, std::size_t size,
                 const AdamCoefficients& c);
}  // namespace ref

}  // namespace thinwire::kernels
