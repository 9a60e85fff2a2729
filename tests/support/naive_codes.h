// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace thinwire::test {

/// q and its step of the values of one block, in plain loops. A q of 0 is
/// positive, as the integer that it stands for.
struct NaiveCodes {
  NaiveCodes(const float* c, std::size_t size, int bits) : q(size) {
    const auto limit = static_cast<float>((1 << (bits - 1)) - 1);
    float largest = 0;
    for (std::size_t i = 0; i < size; ++i)
      largest = std::max(largest, std::fabs(c[i]));
    step = largest / limit;
    for (std::size_t i = 0; i < size; ++i)
      q[i] =
          step == 0
              ? 0
              : std::clamp(std::nearbyint(c[i] / step), -limit, limit) + 0.0f;
  }

  std::vector<float> q;
  float step = 0;
};

}  // namespace thinwire::test
