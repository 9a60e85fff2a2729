// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "thinwire/core/view.h"

/// One block of the error-compensated compression to 4 or 8 bits per element:
/// symmetric, mid-tread (0 stays 0), with one step per block.
///
/// Let L = 2^(bits-1) - 1. An element c is sent as the integer q from -L to L
/// that is nearest to c / step, ties to even. It stands for q * step. The code
/// q + L of element i begins at bit i * bits of the words, in which word 0 has
/// the lowest bits. Bits past the end are 0.
///
/// `active` is a mask as in sign_compress.h, null if nothing is masked. A
/// masked element does not affect the maximum, has the code of 0 and decodes to
/// 0.
///
/// Each function processes one block of `size` elements on one thread; arrays
/// do not overlap. Each throws Error(kInvalidArgument) unless `bits` is 4 or 8.
namespace thinwire::kernels {

/// Returns the number of words of a block of `size` elements.
[[nodiscard]] constexpr std::size_t quantized_words(std::size_t size,
                                                    int bits) noexcept {
  return (size * static_cast<std::size_t>(bits) + 31) / 32;
}

/// Codes with their step, as messages contain them.
struct Quantized {
  const std::uint32_t* words = nullptr;  ///< quantized_words(size, bits).
  float step = 0;
};

/// Quantizes a block: step = max |c| / L, words = codes, c = c - q * step.
/// Returns the step. c becomes the error, 0 where masked. q is 0 if the step is
/// 0 or c / step is NaN. A NaN among the elements makes the step NaN, and with
/// it every error and decoded value. An infinite element does the same, because
/// 0 * step is then NaN.
[[nodiscard]] float quantize(float* c, int bits, std::uint32_t* words,
                             const std::uint32_t* active, std::size_t size);

/// Writes q * step to `out`, 0 where masked.
void dequantize(Quantized q, int bits, const std::uint32_t* active, float* out,
                std::size_t size);

/// Writes the sum over ranks of q_r * (step_r * inverse_count) to `out`, 0
/// where masked. The sum starts from 0 and adds in the order given.
void quantized_average(std::span<const Quantized> received, int bits,
                       float inverse_count, const std::uint32_t* active,
                       float* out, std::size_t size);

/// Arrays for quantize_sum(), all of the same size, at most kMostSummed.
struct QuantizedSum {
  ConstView values{};    ///< fp32, fp16 or bf16; if empty, c is the residual.
  float factor = 1;      ///< Factor on the values, applied first.
  ConstView residual{};  ///< fp32 or bf16.
  View error{};  ///< Same dtype as the residual; may be the same memory.
};
inline constexpr std::size_t kMostSummed = 1024;

/// Quantizes c = values * factor + residual, with both operations rounded. The
/// words and the returned step are those of quantize(c). error = c - q * step,
/// rounded to its dtype. Throws Error(kInvalidArgument) for other sizes or
/// dtypes.
[[nodiscard]] float quantize_sum(const QuantizedSum& sum, int bits,
                                 std::uint32_t* words);

/// Adds values[i] * factor to sum[i], to build the c of a later quantize_sum().
/// `sum` is fp32; `values` is fp32, fp16 or bf16. Throws like quantize_sum().
void add_scaled(View sum, ConstView values, float factor);

/// Adds q * step to values[i] in float, and rounds once to the dtype of
/// `values`: fp32, fp16 or bf16. Throws like quantize_sum().
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
