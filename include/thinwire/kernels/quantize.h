// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinwire/core/view.h"

/// One block of the error-compensated compression to 4 or 8 bits per
/// element: symmetric, mid-tread (0 stays 0), with one step per block.
///
/// With L = 2^(bits-1) - 1, an element c is sent as the integer q from -L to L
/// nearest to c / step, ties to even, and stands for q * step. Its code q + L
/// is at bits i * bits mod 32 and up of word i * bits / 32; bits past the end
/// are 0.
///
/// `active` as in sign_compress.h: a masked element is in no maximum, has the
/// code of 0 and decodes to 0. Null: nothing is masked.
///
/// Each function works on one block of `size` elements, on one thread; arrays
/// do not overlap. Each throws Error(kInvalidArgument) for other `bits`.
namespace thinwire::kernels {

/// Words of a block of `size` elements.
[[nodiscard]] constexpr std::size_t quantized_words(std::size_t size,
                                                    int bits) noexcept {
  return (size * static_cast<std::size_t>(bits) + 31) / 32;
}

/// Codes with their step: what travels.
struct Quantized {
  const std::uint32_t* words = nullptr;  ///< quantized_words(size, bits).
  float step = 0;
};

/// step = max |c| / L, which is returned; words = codes; c = c - q * step, the
/// error, and 0 where masked. q is 0 where the step is 0 or c / step is NaN. A
/// NaN among the elements makes the step one, and so every error and decoded
/// value; so does an infinite element, through 0 * step.
[[nodiscard]] float quantize(float* c, int bits, std::uint32_t* words,
                             const std::uint32_t* active, std::size_t size);

/// out = q * step, 0 where masked.
void dequantize(Quantized q, int bits, const std::uint32_t* active, float* out,
                std::size_t size);

/// out = sum over ranks of q_r * (step_r * inverse_count), 0 where masked; the
/// sum starts from 0 and adds in the order given.
void quantized_average(std::span<const Quantized> received, int bits,
                       float inverse_count, const std::uint32_t* active,
                       float* out, std::size_t size);

/// What quantize_sum() forms its c of, all of one size, at most kMostSummed.
struct QuantizedSum {
  ConstView values{};    ///< fp32, fp16 or bf16; empty: c is the residual.
  float factor = 1;      ///< Multiplies the values first.
  ConstView residual{};  ///< fp32 or bf16.
  View error{};          ///< Of the same dtype; may be the same memory.
};
inline constexpr std::size_t kMostSummed = 1024;

/// c = values * factor + residual, two roundings; words and the step returned
/// are quantize()'s of c; error = c - q * step, rounded to its dtype. Throws
/// Error(kInvalidArgument) for other sizes or dtypes.
[[nodiscard]] float quantize_sum(const QuantizedSum& sum, int bits,
                                 std::uint32_t* words);

/// sum[i] = sum[i] + values[i] * factor: what c above is, kept for later. `sum`
/// is fp32, values fp32, fp16 or bf16. Throws as above.
void add_scaled(View sum, ConstView values, float factor);

/// values[i] = values[i] + q * step, added in float and rounded once to the
/// dtype of `values`: fp32, fp16 or bf16. Throws as above.
void dequantize_add(Quantized q, int bits, View values);

namespace ref {
[[nodiscard]] float quantize(float* c, int bits, std::uint32_t* words,
                             const std::uint32_t* active, std::size_t size);
void dequantize(Quantized q, int bits, const std::uint32_t* active, float* out,
                std::size_t size);
void quantized_average(std::span<const Quantized> received, int bits,
                       float inverse_count, const std::uint32_t* active,
                       float* out, std::size_t size);
[[nodiscard]] float quantize_sum(const QuantizedSum& sum, int bits,
                                 std::uint32_t* words);
void add_scaled(View sum, ConstView values, float factor);
void dequantize_add(Quantized q, int bits, View values);
}  // namespace ref

}  // namespace thinwire::kernels
