// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinwire/core/view.h"
#include "thinwire/kernels/adam.h"

/// One block of the error-compensated 1-bit compression of arXiv:2102.02888
/// and arXiv:2104.06069: a float scale and one sign bit per element. A block is
/// small (at most 1024 elements, 4 KiB), and sign_encode() and
/// sign_encode_average() go over it once.
///
/// Bits: element i is bit i mod 32 of word i / 32, 1 for +, and + is whatever
/// is not < 0: 0, -0.0 and NaN are +. Bits past the end of the block are 0.
///
/// `active` marks masked elements, in the same bit order: 0 = masked. A masked
/// element's value and residual are 0, it is in no sum, and it decodes to 0;
/// its sign bit is sent as 1. Null: nothing is masked.
///
/// All functions work on one block of `size` elements, on one thread; arrays do
/// not overlap and need no alignment beyond that of their element type. Sums
/// are in double in the order of kernels/norm.h (element i to accumulator i mod
/// 16, then the tree; of blocks longer than kSumChunk the chunks' sums are
/// added in order).
namespace thinwire::kernels {

[[nodiscard]] constexpr std::size_t sign_words(std::size_t size) noexcept {
  return (size + 31) / 32;
}

/// Signs with their scale: what travels, and what an averaged momentum is. The
/// scale may be negative: bit 1 is +scale whatever its sign.
struct Signs {
  const std::uint32_t* words = nullptr;  ///< sign_words(size) words.
  float scale = 0;
};

/// The values x to compress. Exactly one form:
///   nothing set          x = 0 (padding: the residual alone)
///   values               x = values
///   grads and exp_avg    x = m * factor, where
///                        m = exp_avg * beta1 + one_minus_beta1 * (g *
///                        grad_scale)
///   grads and mean       the same, with exp_avg = +-mean.scale, 0 where masked
///   and denominator      with either of the two before; `factor` is not used:
///                        x = (accumulated + minus_learning_rate *
///                            ((m * exp_avg_scale) / denominator)) *
///                            denominator
/// The momentum is formed on the fly and not stored. `factor` is the scaling of
/// 1-bit LAMB (arXiv:2104.06069); the last form is what 0/1 Adam synchronises
/// (arXiv:2202.06009): the updates since the last time, as a momentum.
struct SignInput {
  const float* values = nullptr;
  ConstView grads{};  ///< fp32, fp16 or bf16, `size` elements.
  const float* exp_avg = nullptr;
  Signs mean{};
  const AdamCoefficients* coefficients = nullptr;  ///< With grads.
  float factor = 1;
  const float* denominator = nullptr;  ///< > 0 everywhere.
  const float* accumulated = nullptr;  ///< With denominator; null: 0.
};

/// A block's residual, and where its signs go.
struct SignBlock {
  /// float32: c as the last call left it, which went out with `scale`; the
  /// error e = c - scale for +, c + scale for -, is formed as c is read, so
  /// that nothing has to be written once the scale is known. With scale = 0
  /// that is c: memory may hold e itself. A masked element's c is 0, which is
  /// not its e: before it may take part again sign_split() has to form e.
  ///
  /// bfloat16, at most kMostRoundedElements: e, rounded.
  View residual{};
  float scale = 0;  ///< With float32.
  /// sign_words(residual.size()) words, which may be those of input.mean.
  std::uint32_t* words = nullptr;
  const std::uint32_t* active = nullptr;  ///< As above.
  std::size_t num_active = 0;             ///< Elements that are not masked.
};

inline constexpr std::size_t kMostRoundedElements = 1024;

/// What stands for the size of `count` elements whose squares add up to
/// `sum`: sqrt(sum) / sqrt(count), both rounded to float first, as the
/// reference does it; 0 for no elements.
[[nodiscard]] float sign_scale(double sum, std::size_t count);

/// The worker's half: c = x + e, words = its signs; returns the scale that it
/// goes out with, which with float32 is the next call's `block.scale`. The bits
/// are those of c, then sign_scale() and sign_split(), in one pass over memory.
/// Throws Error(kInvalidArgument) naming the field that does not fit.
[[nodiscard]] float sign_encode(const SignInput& input, const SignBlock& block);

/// The server's half: the same for x = sum over ranks, which starts from 0 and
/// adds +-(scale_r * inverse_count) in the order given.
[[nodiscard]] float sign_encode_average(std::span<const Signs> received,
                                        float inverse_count,
                                        const SignBlock& block);

/// bits = signs of c; error (which holds c) = c - scale for +, c + scale for -.
void sign_split(float* error, float scale, std::uint32_t* words,
                const std::uint32_t* active, std::size_t size);

/// out = +-scale, 0 where masked.
void sign_decode(Signs signs, const std::uint32_t* active, float* out,
                 std::size_t size);

/// frozen_update() with the momentum taken from signs: out of 12 1/8 bytes per
/// parameter, none for a decoded momentum. arrays.exp_avg is not used.
void sign_update(Signs mean, const std::uint32_t* active,
                 const FrozenUpdateArrays& arrays, const AdamCoefficients& c);

namespace ref {
[[nodiscard]] float sign_encode(const SignInput& input, const SignBlock& block);
[[nodiscard]] float sign_encode_average(std::span<const Signs> received,
                                        float inverse_count,
                                        const SignBlock& block);
void sign_split(float* error, float scale, std::uint32_t* words,
                const std::uint32_t* active, std::size_t size);
void sign_decode(Signs signs, const std::uint32_t* active, float* out,
                 std::size_t size);
void sign_update(Signs mean, const std::uint32_t* active,
                 const FrozenUpdateArrays& arrays, const AdamCoefficients& c);
}  // namespace ref

}  // namespace thinwire::kernels
