// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "thinwire/core/view.h"

/// Sums in double, in an order fixed by this definition alone: element i goes
/// to accumulator i mod 16, the accumulators are added as a tree (0+8, 1+9, ...
/// then 0+4, ..., 0+2, 1+3, 0+1), for every chunk of kSumChunk elements; the
/// chunks' sums are added in order. Vector width and threads do not matter.
/// The square of a float is exact in double, so a sum of squares is not finite
/// exactly if an element is not.
namespace thinwire::kernels {

/// Shards and buckets end on this grid, so a norm has the same bits however
/// the array is cut.
inline constexpr std::size_t kSumChunk = 1024;

/// Number of chunks of a view of `size` elements.
[[nodiscard]] constexpr std::size_t sum_chunks(std::size_t size) noexcept {
  return (size + kSumChunk - 1) / kSumChunk;
}

/// Writes the sum of squares of each chunk of `values` (fp32, fp16 or bf16) to
/// `sums`, which has one element per chunk. Of a longer array `values` may be
/// any part that begins on the grid.
void chunk_sums_of_squares(ConstView values, std::span<double> sums);
/// Sums of absolute values, likewise.
void chunk_sums_of_abs(ConstView values, std::span<double> sums);

/// The chunks' sums of squares, added.
[[nodiscard]] double sum_of_squares(ConstView values);

namespace ref {
void chunk_sums_of_squares(ConstView values, std::span<double> sums);
void chunk_sums_of_abs(ConstView values, std::span<double> sums);
[[nodiscard]] double sum_of_squares(ConstView values);
}  // namespace ref

}  // namespace thinwire::kernels
