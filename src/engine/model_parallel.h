// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/config/config.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::engine {

/// Ranks that hold different parts of one model, clip by one norm and skip
/// steps together.
class ModelParallel {
 public:
  /// Makes an object for a model that is whole on every rank.
  ModelParallel() = default;
  /// The ranks of `comm` hold the model together. It must outlive this object.
  /// Parameters with indices in `uncounted` are counted on another rank. Throws
  /// Error(kInvalidArgument) with deepspeed semantics, with lean_onebit_adam,
  /// and unless the indices ascend and are the layout's.
  ModelParallel(comm::Communicator& comm, const ParameterLayout& layout,
                const config::Config& config,
                std::span<const std::size_t> uncounted);

  /// Makes a step use the norm of the whole model. The step is then collective
  /// over these ranks, and this object must outlive it.
  void join(optim::StepInput& input) const;

 private:
  comm::Communicator* comm_ = nullptr;  // null: one rank holds the model
  std::vector<Range> uncounted_;
};

}  // namespace thinwire::engine
