// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "support/same_bits.h"

namespace thinwire::test {

/// An array that misses its alignment by `skip` elements, between canaries.
template <class T>
class Guarded {
 public:
  Guarded(const std::vector<T>& values, std::size_t skip)
      : memory_(kCanaries + skip + values.size() + kCanaries, canary()),
        begin_(kCanaries + skip),
        size_(values.size()) {
    std::copy(values.begin(), values.end(), data());
  }

  [[nodiscard]] T* data() { return memory_.data() + begin_; }
  [[nodiscard]] std::span<T> span() { return {data(), size_}; }

  /// Succeeds if the inside has the bits of `want` and the outside is
  /// unchanged.
  ::testing::AssertionResult is(std::span<const T> want) {
    for (std::size_t i = 0; i < memory_.size(); ++i) {
      if (i == begin_) i += size_;  // the array itself
      const T expected = canary();
      if (std::memcmp(&memory_[i], &expected, sizeof(T)) != 0) {
        return ::testing::AssertionFailure()
               << (i < begin_ ? "wrote before the array"
                              : "wrote past the end");
      }
    }
    return same_bits<T>(span(), want);
  }

 private:
  static T canary() {
    std::array<std::byte, sizeof(T)> bytes;
    bytes.fill(std::byte{0x5a});
    return std::bit_cast<T>(bytes);
  }

  // A multiple of 64 bytes, so that only `skip` changes the alignment of an
  // aligned allocation.
  static constexpr std::size_t kCanaries = 64;

  std::vector<T> memory_;
  std::size_t begin_;
  std::size_t size_;
};

template <class T>
Guarded(const std::vector<T>&, std::size_t) -> Guarded<T>;

}  // namespace thinwire::test
