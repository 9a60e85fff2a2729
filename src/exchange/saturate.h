// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <limits>
#include <span>

#include "thinwire/core/dtype.h"

namespace thinwire::exchange {

/// Clamps values to the finite range of `dtype`, fp32, fp16 or bf16, in which
/// they will be stored. NaN stays.
inline void saturate(std::span<float> values, DType dtype) {
  const float most = dtype == DType::kFloat16 ? 65504.0f
                     : dtype == DType::kBFloat16
                         ? 0x1.FEp127f
                         : std::numeric_limits<float>::max();
  for (float& value : values) value = std::clamp(value, -most, most);
}

}  // namespace thinwire::exchange
