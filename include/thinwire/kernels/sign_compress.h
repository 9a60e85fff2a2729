// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinwire/core/view.h"
#include "thinwire/kernels/adam.h"

/// One block of the error-compensated 1-bit compression of arXiv:2102.02888 and
/// arXiv:2104.06069: a float scale and one sign bit per element. A block is
/// small, at most 1024 elements (4 KiB). sign_encode() and
/// sign_encode_average() process it in one pass.
///
/// Bits: element i is bit i mod 32 of word i / 32. The bit is 1 for +, and an
/// element is + unless it is < 0: 0, -0.0 and NaN are +. Bits past the end of
/// the block are 0.
///
/// `active` is a mask in the same bit order: 0 for a masked element, and null
/// if none is masked. A masked element's value and residual are 0, it
/// contributes to no sum, and it decodes to 0. Its sign bit is sent as 1.
///
/// All functions process one block of `size` elements on one thread. Arrays do
/// not overlap and need no more than the alignment of their element type. Sums
/// are in double, in the order of kernels/norm.h: element i is added to
/// accumulator i mod 16, and a tree adds the accumulators. In blocks longer
/// than kSumChunk the chunks' sums are added in order.
namespace thinwire::kernels {

[[nodiscard]] constexpr std::size_t sign_words(std::size_t size) noexcept {
  return (size + 31) / 32;
}

/// Signs with their scale, as messages and averaged momenta contain them. The
/// scale may be negative; bit 1 always stands for +scale.
struct Signs {
  const std::uint32_t* words = nullptr;  ///< sign_words(size) words.
  float scale = 0;
};

/// Values x to compress, in exactly one of these forms:
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
/// The momentum is computed while it is read and not stored. `factor` is the
/// scaling of 1-bit LAMB (arXiv:2104.06069). 0/1 Adam (arXiv:2202.06009) uses
/// the last form in a sync to average the updates since the last sync as if
/// they were a momentum.
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

/// Residual of a block and the destination of its signs.
struct SignBlock {
  /// Residual of the block. With fp32 it is the last call's c, which was sent
  /// with `scale`. The next call computes the error e while it reads c: e = c -
  /// scale for +, c + scale for -. The residual therefore need not be written a
  /// second time when the scale is known. With scale = 0 the error is c, so
  /// memory may hold e itself. A masked element's c is 0, but its e is not.
  /// Before it takes part again, sign_split() must compute e.
  ///
  /// With bf16 it is e, rounded, and has at most kMostRoundedElements.
  View residual{};
  float scale = 0;  ///< Used only with fp32.
  /// Signs of the block, sign_words(residual.size()) words, which may be those
  /// of input.mean.
  std::uint32_t* words = nullptr;
  const std::uint32_t* active = nullptr;  ///< Mask of the block; see above.
  std::size_t num_active = 0;  ///< Number of elements that are not masked.
};

inline constexpr std::size_t kMostRoundedElements = 1024;

/// Returns the scale of `count` elements whose squares add up to `sum`:
/// sqrt(sum) / sqrt(count), or 0 for no elements. Both roots are first rounded
/// to float, as in DeepSpeed.
[[nodiscard]] float sign_scale(double sum, std::size_t count);

/// Encodes a worker's block: c = x + e, and words = signs of c. Returns the
/// scale that is sent; with fp32 it is the `block.scale` of the next call. In
/// one pass over memory, it gets the same bits as if it computed c, then
/// sign_scale(), then sign_split(). Throws Error(kInvalidArgument) with the
/// field that does not fit.
[[nodiscard]] float sign_encode(const SignInput& input, const SignBlock& block);

/// Encodes a server's block like sign_encode(), for x = sum over ranks. The sum
/// starts from 0 and adds +-(scale_r * inverse_count) in the order given.
[[nodiscard]] float sign_encode_average(std::span<const Signs> received,
                                        float inverse_count,
                                        const SignBlock& block);

/// Splits c, which `error` holds, into its signs, written to `words`, and the
/// error: c - scale for +, c + scale for -.
void sign_split(float* error, float scale, std::uint32_t* words,
                const std::uint32_t* active, std::size_t size);

/// Writes +-scale to `out`, 0 where masked.
void sign_decode(Signs signs, const std::uint32_t* active, float* out,
                 std::size_t size);

/// Performs frozen_update() with the momentum taken from signs; arrays.exp_avg
/// is unused. It moves 12 1/8 bytes per parameter and stores no decoded
/// momentum.
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
