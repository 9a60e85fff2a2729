// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "thinwire/kernels/norm.h"

namespace thinwire::kernels::ref {

/// The sum of one chunk, in the order that thinwire/kernels/norm.h defines.
class OrderedSum {
 public:
  void add(double term) noexcept { parts_[count_++ % parts_.size()] += term; }
  void add_square(double x) noexcept { add(x * x); }

  [[nodiscard]] double total() const noexcept {
    std::array<double, 16> parts = parts_;
    for (std::size_t half = parts.size() / 2; half > 0; half /= 2) {
      for (std::size_t i = 0; i < half; ++i) parts[i] += parts[i + half];
    }
    return parts[0];
  }

 private:
  std::array<double, 16> parts_{};
  std::size_t count_ = 0;
};

/// Calls chunk(begin, end) for the chunks of `size` elements, in order.
template <class Chunk>
void for_each_chunk(std::size_t size, Chunk&& chunk) {
  for (std::size_t begin = 0; begin < size; begin += kSumChunk) {
    chunk(begin, std::min(begin + kSumChunk, size));
  }
}

}  // namespace thinwire::kernels::ref
