// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

/// Constants of kernels::log2(), which thinwire/kernels/denominator_codes.h
/// defines.
namespace thinwire::kernels {

inline constexpr std::uint64_t kFractionBits = 0x000f'ffff'ffff'ffff;
inline constexpr std::uint64_t kOneBits = 0x3ff0'0000'0000'0000;
inline constexpr double kSqrt2 = 0x1.6a09e667f3bcdp+0;
inline constexpr double kTwoOverLn2 = 0x1.71547652b82fep+1;

/// Coefficients of the series of atanh, divided by ln 2. The remainder is
/// 0.1716^23.
inline constexpr std::array<double, 11> kLog2Series = [] {
  std::array<double, 11> series{};
  for (std::size_t k = 0; k < series.size(); ++k)
    series[k] = kTwoOverLn2 / static_cast<double>(2 * k + 1);
  return series;
}();

}  // namespace thinwire::kernels
