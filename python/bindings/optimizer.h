// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <utility>

#include "experts.h"
#include "support/arrays.h"
#include "support/call.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/config/config.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/engine/make_optimizer.h"

namespace thinwire::python {

/// An optimizer, and what it needs to live.
struct OptimizerParts {
  std::shared_ptr<comm::Communicator> comm;
  Experts experts{};
  std::unique_ptr<comm::Communicator> grouped{};  // null: flat
  ParameterLayout layout;
  config::Config config;
  Array params;  // the memory of ZeRO and lean 1-bit Adam
  engine::OptimizerStack stack{};
  optim::Notes notes{};  // of the last adoption
  OneCaller caller{};

  [[nodiscard]] optim::Optimizer& optimizer() const { return *stack.optimizer; }
};

/// _core.Optimizer.
using OptimizerHandle = Handle<OptimizerParts>;

}  // namespace thinwire::python
