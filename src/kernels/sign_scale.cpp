// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "thinwire/kernels/sign_compress.h"

namespace thinwire::kernels {

float sign_scale(double sum, std::size_t count) {
  if (count == 0) return 0;
  const auto elements = static_cast<double>(count);
  return static_cast<float>(std::sqrt(sum)) /
         static_cast<float>(std::sqrt(elements));
}

}  // namespace thinwire::kernels
