// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "thinwire/core/view.h"

namespace thinwire::exchange {

/// A part of the gradient: the values of some units (parameters).
struct UnitPart {
  View values;                         ///< fp32, fp16 or bf16.
  std::span<const std::size_t> units;  ///< In the order of their values.
  double loss_scale = 1;  ///< Factor in the values, in [2^-126, 2^127].
};

}  // namespace thinwire::exchange
