// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/require.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/compression_options.h"
#include "thinwire/optim/freeze_options.h"

/// Checks that the reference's low-bit optimizers share. They throw
/// Error(kInvalidArgument) naming the field, its range and its value.
namespace thinwire::deepspeed {

inline void require_exact_warmup(std::optional<int> warmup_bits) {
  require(warmup_bits.value_or(0) == 0, "warmup_bits",
          "0 with deepspeed semantics, whose exact steps average exactly",
          warmup_bits.value_or(0));
}

inline void require_fp32_residuals(
    const optim::CompressionOptions& compression) {
  const DType dtype = compression.residual_dtype.value_or(DType::kFloat32);
  require(dtype == DType::kFloat32, "residual_dtype",
          "float32 with deepspeed semantics", to_string(dtype));
}

/// Returns the freeze step for the checks of Thinwire's own class. Here it may
/// be 0, because the initialization step counts.
[[nodiscard]] inline std::int64_t at_least_one(
    std::optional<std::int64_t> freeze_step, const char* name) {
  const std::int64_t named = freeze_step.value_or(1);
  require(named >= 0, name, ">= 0", named);
  return std::max<std::int64_t>(1, named);
}

/// Checks the options of an optimizer that freezes its variance.
template <class Options>
void validate_freezing(const Options& options, const ParameterLayout& layout) {
  require(options.freeze.step.value_or(1) != optim::kAutoFreeze, "semantics",
          "corrected with an automatic freeze", "deepspeed");
  require_exact_warmup(options.freeze.warmup_bits);
  Options rest = options;
  rest.freeze.step = at_least_one(options.freeze.step, "freeze_step");
  require_fp32_residuals(options.compression);
  rest.validate(layout);
}

}  // namespace thinwire::deepspeed
