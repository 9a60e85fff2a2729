// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/options.h"
#include "core/require.h"
#include "thinwire/lean/lean_onebit_adam.h"

namespace thinwire::lean {

void LeanOnebitAdamOptions::validate(const ParameterLayout& layout) const {
  optim::low_bit_settings("lean_onebit_adam", "", *this).validate(layout);
  compression.validate();
  freeze.validate();
  require(denominator_bits == 8 || denominator_bits == 4, "denominator_bits",
          "8 or 4", denominator_bits);
}

}  // namespace thinwire::lean
