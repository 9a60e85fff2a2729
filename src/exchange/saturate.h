// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>

#include "core/visit_floats.h"
#include "thinwire/core/dtype.h"

namespace thinwire::exchange {

/// Clamps values to the finite range of `dtype`, fp32, fp16 or bf16, in which
/// they will be stored. NaN stays.
inline void saturate(std::span<float> values, DType dtype) {
  const float most = largest_finite(dtype);
  for (float& value : values) value = std::clamp(value, -most, most);
}

}  // namespace thinwire::exchange
