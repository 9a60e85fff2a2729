// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/core/view.h"

/// Sums in double, in an order fixed by this definition alone: element i goes
/// to accumulator i mod 16, the accumulators are added as a tree (0+8, 1+9, ...
/// then 0+4, ..., 0+2, 1+3, 0+1), for every chunk of kSumChunk elements; the
/// chunks' sums are added in order. Vector width and threads do not matter.
/// The square of a float is exact in double, so a sum of squares is not finite
/// exactly if an element is not.
namespace thinwire::kernels {

inline constexpr std::size_t kSumChunk = 16384;

/// Number of chunks of a view of `size` elements.
[[nodiscard]] constexpr std::size_t sum_chunks(std::size_t size) noexcept {
  return (size + kSumChunk - 1) / kSumChunk;
}

/// Sum of squares of chunk `chunk` of `values` (fp32, fp16 or bf16).
[[nodiscard]] double chunk_sum_of_squares(ConstView values, std::size_t chunk);
/// Sum of absolute values of a chunk, likewise.
[[nodiscard]] double chunk_sum_of_abs(ConstView values, std::size_t chunk);

namespace ref {
[[nodiscard]] double chunk_sum_of_squares(ConstView values, std::size_t chunk);
[[nodiscard]] double chunk_sum_of_abs(ConstView values, std::size_t chunk);
}  // namespace ref

}  // namespace thinwire::kernels
