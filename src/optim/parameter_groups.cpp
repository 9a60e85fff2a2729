// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/parameter_groups.h"

#include <cmath>

#include "core/require.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

void require_learning_rate(double learning_rate) {
  require(std::isfinite(learning_rate) && learning_rate >= 0, "learning_rate",
          "finite and >= 0", learning_rate);
}

void ParameterGroups::set_learning_rate(double learning_rate) {
  for (std::size_t group = 0; group < num_groups(); ++group)
    set_learning_rate(group, learning_rate);
}

void ParameterGroups::set_exp_avg_mask(std::size_t /*group*/,
                                       std::span<const float> /*mask*/) {
  throw Error(ErrorCode::kInvalidArgument,
              "exp_avg_mask: this optimizer has no masks, it compresses "
              "nothing");
}

std::size_t JoinedGroups::num_groups() const {
  return parts_().front()->num_groups();
}

void JoinedGroups::set_learning_rate(std::size_t group, double learning_rate) {
  for (ParameterGroups* part : parts_())
    part->set_learning_rate(group, learning_rate);
}

double JoinedGroups::learning_rate(std::size_t group) const {
  return parts_().front()->learning_rate(group);
}

void JoinedGroups::set_weight_decay(std::size_t group, double weight_decay) {
  for (ParameterGroups* part : parts_())
    part->set_weight_decay(group, weight_decay);
}

double JoinedGroups::weight_decay(std::size_t group) const {
  return parts_().front()->weight_decay(group);
}

void JoinedGroups::set_exp_avg_mask(std::size_t group,
                                    std::span<const float> mask) {
  parts_().front()->set_exp_avg_mask(group, mask);
}

}  // namespace thinwire::optim
