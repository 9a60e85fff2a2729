// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "engine/model_parallel.h"
#include "experts.h"
#include "support/arrays.h"
#include "support/call.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/config/config.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/engine/make_optimizer.h"

namespace thinwire::python {

/// An optimizer, and the objects that must outlive it.
struct OptimizerParts {
  std::shared_ptr<comm::Communicator> comm;
  Experts experts{};
  engine::ModelParallel model_parallel{};
  std::unique_ptr<comm::Communicator> grouped{};  // null if flat
  ParameterLayout layout;
  config::Config config;
  Array params;  // memory for ZeRO and lean 1-bit Adam
  engine::OptimizerStack stack{};
  optim::Notes notes{};  // of the latest loaded state
  OneCaller caller{};

  [[nodiscard]] optim::Optimizer& optimizer() const { return *stack.optimizer; }
};

/// Returns the last exact step, or the planned one if it has not been reached.
inline std::optional<std::int64_t> freeze_step_of(
    const optim::Optimizer& optimizer) {
  const optim::FreezeStage* stage = optimizer.freeze();
  const optim::Progress progress = optimizer.progress();
  const bool is_over = progress.phase != optim::Phase::kExact;
  if (stage != nullptr && is_over && stage->frozen_at() > 0)
    return stage->frozen_at();
  return progress.freeze_step;
}

/// _core.Optimizer.
using OptimizerHandle = Handle<OptimizerParts>;

}  // namespace thinwire::python
