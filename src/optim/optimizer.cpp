// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/optimizer.h"

#include <utility>

#include "optim/saved_state.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

std::string_view to_string(Phase phase) noexcept {
  switch (phase) {
    case Phase::kExact:
      return "exact";
    case Phase::kCompressed:
      return "compressed";
    case Phase::kLocal:
      return "local";
  }
  return "unknown";
}

void Optimizer::reduce_early(View /*grads*/, Range /*range*/) {
  throw Error(ErrorCode::kFailedPrecondition,
              "reduce_early: this optimizer averages nothing before its step");
}

void Optimizer::measure_early(ConstView /*grads*/, Range /*range*/) {
  throw Error(ErrorCode::kFailedPrecondition,
              "measure_early: this optimizer measures nothing before its step");
}

void Optimizer::synchronize(View /*params*/) {}

void Optimizer::repeat_local_steps(View /*params*/) {}

ConstView Optimizer::exchanged_params(ConstView params) const { return params; }

std::int64_t Optimizer::steps_behind() const noexcept { return 0; }

StateDict Optimizer::state_dict() const {
  StateDict copy = copy_of(state());
  copy.put_all("", owner());
  return copy;
}

void Optimizer::load_state_dict(const StateDict& state) {
  require_owner(state);
  adopt(copy_to_adopt(state))();
}

StateDict Optimizer::owner() const { return {}; }

void Optimizer::require_owner(const StateDict& /*state*/) const {}

void Optimizer::set_exp_avg_mask(std::size_t /*group*/,
                                 std::span<const float> /*mask*/) {
  throw Error(ErrorCode::kInvalidArgument,
              "exp_avg_mask: this optimizer has no masks, it compresses "
              "nothing");
}

void Optimizer::set_learning_rate(double learning_rate) {
  for (std::size_t group = 0; group < num_groups(); ++group)
    set_learning_rate(group, learning_rate);
}

}  // namespace thinwire::optim
