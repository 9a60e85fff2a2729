// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/optimizer.h"

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

void EarlyGradients::measure(ConstView /*grads*/, Range /*range*/) {
  require_measures();
}

void EarlyGradients::require_reduces() const {
  if (!reduces())
    throw Error(ErrorCode::kFailedPrecondition,
                "reduce: the next step averages nothing before all gradients "
                "are there");
}

void EarlyGradients::require_measures() const {
  if (!measures())
    throw Error(ErrorCode::kFailedPrecondition,
                "measure: the next step measures nothing before all gradients "
                "are there");
}

Notes Optimizer::load_state_dict(const StateDict& state) {
  require_owner(state);
  Notes notes = adopt(copy_to_adopt(state))();
  if (LocalSteps* const local = local_steps()) local->repeat({});
  return notes;
}

ConstView exchanged_params(const Optimizer& optimizer, ConstView params) {
  const LocalSteps* const local = optimizer.local_steps();
  return local == nullptr ? params : local->exchanged_params(params);
}

void synchronize(Optimizer& optimizer, View params) {
  if (LocalSteps* const local = optimizer.local_steps())
    local->synchronize(params);
}

std::int64_t steps_behind(const Optimizer& optimizer) noexcept {
  const LocalSteps* const local = optimizer.local_steps();
  return local == nullptr ? 0 : local->steps_behind();
}

}  // namespace thinwire::optim
