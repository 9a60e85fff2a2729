// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>

#include "core/visit_floats.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::exchange {

/// Multiplies a mean by `scale` in place and writes it to `to`, which has the
/// same size. If `saturates`, clamps it to the finite range of its dtype (fp32,
/// fp16 or bf16); NaN stays NaN.
inline void write_mean(std::span<float> mean, float scale, bool saturates,
                       View to) {
  for (float& value : mean) value *= scale;
  if (saturates) {
    const float most = largest_finite(to.dtype());
    for (float& value : mean) value = std::clamp(value, -most, most);
  }
  kernels::convert(mean, to);
}

}  // namespace thinwire::exchange
