// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include "optim/checks.h"

/// Checks of the arguments of optimizers with 16-bit parameters. They throw
/// Error(kInvalidArgument).
namespace thinwire::precision {

inline void require_params(View params, DType dtype, std::size_t size) {
  require(params.dtype() == dtype, "params", to_string(dtype),
          to_string(params.dtype()));
  require(params.size() == size, "params", fmt::format("{} elements", size),
          params.size());
}

inline void require_input(const optim::StepInput& in, DType dtype,
                          std::size_t size, std::size_t cut = 0) {
  require_params(in.params, dtype, size);
  optim::require_step_input(in, size, cut);
  require(in.low_precision.empty(), "low_precision",
          "empty: params are of 16 bits themselves", in.low_precision.size());
}

/// Checks the arguments of a wrapper. `initial` holds the parameters.
inline void require_wrapped(const optim::Optimizer* optimizer,
                            ConstView initial, std::size_t size) {
  if (optimizer == nullptr) reject("optimizer must be one to wrap, got null");
  require(initial.size() == size, "initial", fmt::format("{} elements", size),
          initial.size());
}

}  // namespace thinwire::precision
