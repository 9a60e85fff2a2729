// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::test {

inline std::vector<float> floats_of(ConstView values) {
  std::vector<float> wide(values.size());
  kernels::convert(values, wide);
  return wide;
}

inline Buffer converted(ConstView values, DType dtype) {
  Buffer result(values.size(), dtype);
  kernels::convert(values, result.view());
  return result;
}

}  // namespace thinwire::test
