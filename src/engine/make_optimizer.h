// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/config/config.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/precision/mixed_precision.h"
#include "thinwire/shard/zero_optimizer.h"

namespace thinwire::engine {

/// The optimizer that a Config asks for, in its precision.
struct MadeOptimizer {
  std::unique_ptr<optim::Optimizer> optimizer;
  precision::MixedPrecision* mixed = nullptr;  ///< If it is one.
  shard::ZeroOptimizer* zero = nullptr;        ///< If it is one.
};

/// Collective. `initial` are the parameters, in any dtype; ZeRO makes its
/// shards of `params`.
[[nodiscard]] MadeOptimizer make_optimizer(comm::Communicator& comm,
                                           const ParameterLayout& layout,
                                           const config::Config& config,
                                           View params, ConstView initial);

}  // namespace thinwire::engine
