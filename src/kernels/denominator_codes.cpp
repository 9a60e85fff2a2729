// SPDX-License-Identifier: Apache-2.0
// Scalar arithmetic that the reference and the fast kernels share.
#include "thinwire/kernels/denominator_codes.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/log2.h"

namespace thinwire::kernels {

double log2(float x) {
  const auto bits = std::bit_cast<std::uint64_t>(double{x});
  auto exponent =
      static_cast<double>(static_cast<std::int64_t>(bits >> 52) - 1023);
  double m = std::bit_cast<double>((bits & kFractionBits) | kOneBits);
  if (m > kSqrt2) {
    m = m * 0.5;
    exponent = exponent + 1;
  }
  const double t = (m - 1) / (m + 1);
  const double square = t * t;
  double sum = kLog2Series.back();
  for (std::size_t k = kLog2Series.size() - 1; k-- > 0;)
    sum = sum * square + kLog2Series[k];
  return exponent + t * sum;
}

float inverse_power_of_2(float y) {
  const float nearest = std::clamp(std::nearbyint(-y), -126.0f, 126.0f);
  const float f = -y - nearest;
  float sum = kPowerOf2.back();
  for (std::size_t k = kPowerOf2.size() - 1; k-- > 0;)
    sum = sum * f + kPowerOf2[k];
  const auto exponent = static_cast<std::int32_t>(nearest) + 127;
  return sum * std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23);
}

InverseTables inverse_tables(const CodeRange& range) {
  InverseTables tables;
  for (std::size_t j = 0; j < 16; ++j) {
    const auto index = static_cast<float>(j);
    const float above = 16 * index * range.step;
    tables.coarse[j] = inverse_power_of_2(range.low + above);
    tables.fine[j] = inverse_power_of_2(index * range.step);
  }
  return tables;
}

int code_of(float d, const CodeRange& range, int bits) {
  if (range.step == 0) return 1;
  const double steps = (log2(d) - double{range.low}) / double{range.step};
  const double k = std::clamp(std::nearbyint(steps), 0.0,
                              static_cast<double>(most_code_steps(bits)));
  return 1 + static_cast<int>(k);
}

}  // namespace thinwire::kernels
