// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinwire/kernels/adam.h"
#include "thinwire/kernels/sign_compress.h"

/// LAMB, arXiv:1904.00962, and the fresh variance of 1-bit LAMB,
/// arXiv:2104.06069. LAMB takes two passes, because its trust ratio needs the
/// norms of a whole parameter. lamb_moments() computes the sums, and
/// lamb_update() then gets the ratio in minus_learning_rate. Every function
/// processes a part of one parameter on one thread. Every operation is rounded
/// to float in the order given; sums are in double, in the order of
/// kernels/norm.h.
namespace thinwire::kernels {

/// Sums of squares of the two norms in a trust ratio.
struct LambSums {
  double params = 0;
  double update = 0;
};

/// Runs the first pass. g, m, v and d are as in adam(), l2_decay included; then
///   u = (m * exp_avg_scale) / d
///   if decoupled_decay != 0:  u = u + decoupled_decay * p
/// Writes exp_avg and exp_avg_sq only; low_precision is not used. Writes to
/// `sums` the sums of p^2 and u^2 of each chunk. The first `first_chunk`
/// elements of the part, in [1, kSumChunk], belong to its first chunk. Each
/// later chunk has kSumChunk elements, except that the last may be shorter.
/// Reads and writes 24 bytes per parameter in fp32.
void lamb_moments(const AdamArrays& arrays, const AdamCoefficients& c,
                  std::size_t first_chunk, std::span<LambSums> sums);

/// Runs the second pass: computes u again, from the present exp_avg and
/// exp_avg_sq, and
///   p = p + minus_learning_rate * u
/// low_precision is as in adam(). `grads` only determines the length. Moves 16
/// bytes per parameter.
void lamb_update(const AdamArrays& arrays, const AdamCoefficients& c);

/// A momentum in one of its two forms.
struct MomentumForm {
  const float* values = nullptr;  ///< Values, if not null.
  Signs signs{};                  ///< Signs, used if `values` is null.
};

/// Flat arrays of one block, of equal length. None overlap.
struct LambFactorArrays {
  float* fresh = nullptr;              ///< In and out: the fresh variance.
  const float* denominator = nullptr;  ///< Frozen, > 0 everywhere.
  const float* params = nullptr;  ///< Read only if decoupled_decay is not 0.
  MomentumForm exp_avg{};         ///< Momentum after the exchange.
  MomentumForm previous{};        ///< Momentum before the exchange.
  const std::uint32_t* active = nullptr;  ///< Mask of sign_compress.h.
  float floor = 0;                        ///< Least fresh denominator.
  std::size_t size = 0;
};

/// Sums from which 1-bit LAMB's factor is computed.
struct LambFactorSums {
  double plain = 0;   ///< Sum of squares of the update without decay.
  double update = 0;  ///< Sum of squares of the update with decay.
  float ratio = 0;    ///< Largest ratio of frozen to fresh denominator.
};

/// Recovers the averaged gradient from the momentum, and updates its variance.
/// Also measures how far the frozen and the fresh denominator differ. m =
/// exp_avg; m and previous are 0 if masked:
///   g = (m - beta1 * previous) / one_minus_beta1
///   fresh = fresh * beta2 + (one_minus_beta2 * g) * g
///   d_fresh = max(d of adam() with v = fresh, floor)
///   ratio = max over unmasked elements of denominator / d_fresh
/// If decoupled_decay is 0, both sums are 0. Otherwise:
///   u0 = (m * exp_avg_scale) / denominator      plain = sum of u0^2
///   u = u0 + decoupled_decay * p                update = sum of u^2
/// Masked elements count in the sums but not in the maximum, which is 0 if all
/// elements are masked. The maximum ignores NaN (a NaN in d_fresh is one in
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
