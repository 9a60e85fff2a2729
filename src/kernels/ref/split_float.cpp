// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/split_float.h"

#include <bit>

namespace thinwire::kernels::ref {

void split_float(const float* values, BFloat16* high, std::uint16_t* low,
                 std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(values[i]);
    high[i].bits = static_cast<std::uint16_t>((bits + 0x8000u) >> 16);
    low[i] = static_cast<std::uint16_t>(bits);
  }
}

void join_float(const BFloat16* high, const std::uint16_t* low, float* values,
                std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) {
    const auto rest = static_cast<std::int16_t>(low[i]);
    values[i] =
        std::bit_cast<float>((std::uint32_t{high[i].bits} << 16) +
                             static_cast<std::uint32_t>(std::int32_t{rest}));
  }
}

}  // namespace thinwire::kernels::ref
