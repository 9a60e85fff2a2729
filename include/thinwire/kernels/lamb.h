// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinwire/kernels/adam.h"
#include "thinwire/kernels/sign_compress.h"

/// LAMB (arXiv:1904.00962) and the fresh variance of 1-bit LAMB
/// (arXiv:2104.06069). LAMB is two passes, because its trust ratio takes the
/// norms of a whole parameter: lamb_moments() for the sums, then lamb_update()
/// with the ratio folded into minus_learning_rate. Every function works on a
/// part of one parameter, on one thread; every operation is rounded to float in
/// the order given, sums are in double in the order of kernels/norm.h.
namespace thinwire::kernels {

/// Sums of squares of what a trust ratio divides.
struct LambSums {
  double params = 0;
  double update = 0;
};

/// The first pass. g, m, v and d as in adam(), l2_decay included; then
///   u = (m * exp_avg_scale) / d
///   if decoupled_decay != 0:  u = u + decoupled_decay * p
/// Writes exp_avg and exp_avg_sq only; low_precision is not used. `sums` are
/// those of p^2 and u^2 for each chunk of the array that the part is of: its
/// first `first_chunk` elements, in [1, kSumChunk], then kSumChunk each. 24
/// bytes per parameter in fp32.
void lamb_moments(const AdamArrays& arrays, const AdamCoefficients& c,
                  std::size_t first_chunk, std::span<LambSums> sums);

/// The second pass: u again, from exp_avg and exp_avg_sq as they are, and
///   p = p + minus_learning_rate * u
/// low_precision as in adam(). Of `grads` only the size is used: it is the
/// length. 16 bytes per parameter.
void lamb_update(const AdamArrays& arrays, const AdamCoefficients& c);

/// A momentum in one of its two forms.
struct MomentumForm {
  const float* values = nullptr;  ///< If not null.
  Signs signs{};                  ///< Otherwise.
};

/// Flat arrays of equal length, of one block; none overlap.
struct LambFactorArrays {
  float* fresh = nullptr;              ///< In and out: the fresh variance.
  const float* denominator = nullptr;  ///< Frozen, > 0 everywhere.
  const float* params = nullptr;  ///< Read only if decoupled_decay is not 0.
  MomentumForm exp_avg{};         ///< After the exchange, and
  MomentumForm previous{};        ///< before it.
  const std::uint32_t* active = nullptr;  ///< As in sign_compress.h.
  float floor = 0;                        ///< Of the fresh denominator.
  std::size_t size = 0;
};

/// What 1-bit LAMB's factor is made of.
struct LambFactorSums {
  double plain = 0;   ///< Sum of squares of the update without decay,
  double update = 0;  ///< and with it.
  float ratio = 0;    ///< Largest frozen over fresh denominator.
};

/// The gradient that the averaged momentum stands for, its variance, and how
/// far the frozen denominator is off; m = exp_avg, both 0 where masked:
///   g = (m - beta1 * previous) / one_minus_beta1
///   fresh = fresh * beta2 + (one_minus_beta2 * g) * g
///   d_fresh = max(d of adam() with v = fresh, floor)
///   ratio = max over unmasked elements of denominator / d_fresh
/// and if decoupled_decay != 0, otherwise both sums are 0:
///   u0 = (m * exp_avg_scale) / denominator      plain = sum of u0^2
///   u = u0 + decoupled_decay * p                update = sum of u^2
/// Masked elements are in the sums but not in the maximum, which is 0 where
/// there is nothing else and passes over NaN (a NaN in d_fresh is one in
/// fresh).
LambFactorSums lamb_factor(const LambFactorArrays& arrays,
                           const AdamCoefficients& c);

namespace ref {
void lamb_moments(const AdamArrays& arrays, const AdamCoefficients& c,
                  std::size_t first_chunk, std::span<LambSums> sums);
void lamb_update(const AdamArrays& arrays, const AdamCoefficients& c);
LambFactorSums lamb_factor(const LambFactorArrays& arrays,
                           const AdamCoefficients& c);
}  // namespace ref

}  // namespace thinwire::kernels
