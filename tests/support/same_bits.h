// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"

/// Compares bits, where any NaN equals any NaN.
namespace thinwire::test {

inline bool same_bits(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}
inline bool same_bits(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}
inline bool same_bits(Half a, Half b) {
  return same_bits(to_float(a), to_float(b));
}
inline bool same_bits(BFloat16 a, BFloat16 b) {
  return same_bits(to_float(a), to_float(b));
}
inline bool same_bits(std::uint32_t a, std::uint32_t b) { return a == b; }
inline bool same_bits(std::uint16_t a, std::uint16_t b) { return a == b; }
inline bool same_bits(std::uint8_t a, std::uint8_t b) { return a == b; }

inline double shown(double value) { return value; }
inline double shown(Half value) { return to_float(value); }
inline double shown(BFloat16 value) { return to_float(value); }

/// Returns success, or the first element that differs.
template <class T>
::testing::AssertionResult same_bits(std::span<const T> got,
                                     std::span<const T> want) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure()
           << got.size() << " elements, want " << want.size();
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!same_bits(got[i], want[i])) {
      return ::testing::AssertionFailure()
             << "element " << i << " of " << got.size() << ": got "
             << shown(got[i]) << ", want " << shown(want[i]);
    }
  }
  return ::testing::AssertionSuccess();
}

/// Compares any type, including the bits of NaNs.
inline ::testing::AssertionResult same_bytes(ConstView a, ConstView b) {
  if (a.dtype() != b.dtype() || a.size() != b.size())
    return ::testing::AssertionFailure() << "another dtype or size";
  if (a.bytes() != 0 && std::memcmp(a.data(), b.data(), a.bytes()) != 0)
    return ::testing::AssertionFailure() << "other bytes";
  return ::testing::AssertionSuccess();
}

}  // namespace thinwire::test
