// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/options.h"
#include "core/require.h"
#include "optim/low_bit/freeze/freeze.h"
#include "thinwire/lean/lean_onebit_adam.h"

namespace thinwire::lean {

void LeanOnebitAdamOptions::validate(const ParameterLayout& layout) const {
  optim::low_bit_settings("lean_onebit_adam", "", *this).validate(layout);
  optim::validate_freeze(*this);
  require(denominator_bits == 8 || denominator_bits == 4, "denominator_bits",
          "8 or 4", denominator_bits);
  require(!exchange.during_backward, "during_backward",
          "false with lean 1-bit Adam", exchange.during_backward);
}

}  // namespace thinwire::lean
