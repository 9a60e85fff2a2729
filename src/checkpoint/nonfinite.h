// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"

namespace thinwire::checkpoint {

template <class Bits>
[[nodiscard]] std::uint64_t count_nonfinite(std::span<const Bits> values,
                                            Bits exponent) {
  std::uint64_t count = 0;
  for (const Bits bits : values) count += (bits & exponent) == exponent;
  return count;
}

/// NaN and infinity among them; 0 of dtypes that have none. By their bits: data
/// lies at multiples of its element's size.
[[nodiscard]] inline std::uint64_t count_nonfinite(ConstView values) {
  const auto as = [&]<class Bits>(Bits exponent) {
    return count_nonfinite(
        std::span(static_cast<const Bits*>(values.data()), values.size()),
        exponent);
  };
  switch (values.dtype()) {
    case DType::kFloat32:
      return as(std::uint32_t{0x7f80'0000});
    case DType::kFloat16:
      return as(std::uint16_t{0x7c00});
    case DType::kBFloat16:
      return as(std::uint16_t{0x7f80});
    case DType::kFloat64:
      return as(std::uint64_t{0x7ff0'0000'0000'0000});
    default:
      return 0;
  }
}

}  // namespace thinwire::checkpoint
