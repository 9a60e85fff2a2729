// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "thinwire/core/view.h"

/// Sums in double, in an order fixed by this definition alone, on two levels.
/// Within a chunk of kSumChunk elements, element i is added to accumulator i
/// mod 16. The accumulators are added as a tree (0+8, 1+9, ... then 0+4, ...,
/// 0+2, 1+3, 0+1). The sums of the chunks in a group of kSumGroup neighbours
/// are added by the same rule, chunk i to accumulator i mod 16. Sums of groups
/// are added in order. Vector width and threads do not matter, and a device
/// that adds in parallel takes few sequential steps. The square of a float is
/// exact in double, so a sum of squares is finite exactly if all elements are.
namespace thinwire::kernels {

/// Number of elements in a chunk. Shards and buckets end on this grid, so a
/// norm has the same bits for any division of the array.
inline constexpr std::size_t kSumChunk = 1024;

/// Number of chunks in a group. Their sums are added like the elements of a
/// chunk.
inline constexpr std::size_t kSumGroup = 1024;

/// Returns the number of chunks of a view of `size` elements.
[[nodiscard]] constexpr std::size_t sum_chunks(std::size_t size) noexcept {
  return (size + kSumChunk - 1) / kSumChunk;
}

/// Writes the sum of squares of each chunk of `values` (fp32, fp16 or bf16) to
/// `sums`, which has one element per chunk. `values` may be part of a longer
/// array, if that part begins on the grid.
void chunk_sums_of_squares(ConstView values, std::span<double> sums);
/// Writes sums of absolute values in the same way.
void chunk_sums_of_abs(ConstView values, std::span<double> sums);

/// Adds up the sums of chunks in the order above. The caller passes them by
/// ascending index; omitted chunks count as 0.
template <class Sum = double>
class ChunkTotal {
 public:
  void add(std::size_t chunk, const Sum& sum) {
    if (chunk / kSumGroup != group_) {
      total_ += group_sum();
      parts_ = {};
      group_ = chunk / kSumGroup;
    }
    parts_[chunk % parts_.size()] += sum;
  }
  [[nodiscard]] Sum total() const {
    Sum total = total_;
    total += group_sum();
    return total;
  }

 private:
  [[nodiscard]] Sum group_sum() const {
    std::array<Sum, 16> parts = parts_;
    for (std::size_t half = parts.size() / 2; half > 0; half /= 2)
      for (std::size_t i = 0; i < half; ++i) parts[i] += parts[i + half];
    return parts[0];
  }

  std::array<Sum, 16> parts_{};
  std::size_t group_ = 0;
  Sum total_{};
};

/// Returns the sum over chunks 0, 1, ... of an array.
[[nodiscard]] inline double sum_of_chunks(std::span<const double> sums) {
  ChunkTotal<> total;
  for (std::size_t chunk = 0; chunk < sums.size(); ++chunk)
    total.add(chunk, sums[chunk]);
  return total.total();
}

/// Returns the sum of squares of all chunks.
[[nodiscard]] double sum_of_squares(ConstView values);

namespace ref {
void chunk_sums_of_squares(ConstView values, std::span<double> sums);
void chunk_sums_of_abs(ConstView values, std::span<double> sums);
[[nodiscard]] double sum_of_squares(ConstView values);
}  // namespace ref

}  // namespace thinwire::kernels
