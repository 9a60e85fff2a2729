// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/optimizer.h"

namespace thinwire::optim {

std::string_view to_string(Phase phase) noexcept {
  return phase == Phase::kExact ? "exact" : "compressed";
}

void Optimizer::set_learning_rate(double learning_rate) {
  for (std::size_t group = 0; group < num_groups(); ++group)
    set_learning_rate(group, learning_rate);
}

}  // namespace thinwire::optim
