// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/compression_options.h"

#include <cmath>

#include "core/require.h"

namespace thinwire::optim {

void CompressionOptions::validate() const {
  exchange.validate();
  require(std::isfinite(denom_floor) && denom_floor >= 0, "denom_floor",
          "finite and >= 0", denom_floor);
  const DType residuals = residual_dtype.value_or(DType::kFloat32);
  require(residuals == DType::kFloat32 || residuals == DType::kBFloat16,
          "residual_dtype", "float32 or bfloat16", to_string(residuals));
}

}  // namespace thinwire::optim
