// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "thinwire/comm/communicator.h"
#include "thinwire/config/config.h"
#include "thinwire/lean/lean_onebit_adam.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"
#include "thinwire/precision/low_precision_optimizer.h"
#include "thinwire/zero/sharded_optimizer.h"

namespace thinwire::engine {

/// The optimizer that a Config asks for, in its precision. At most one of the
/// pointers is set; it is `optimizer` itself, seen as what it also is.
struct OptimizerStack {
  std::unique_ptr<optim::Optimizer> optimizer;
  /// Parameters of 16 bits without ZeRO.
  precision::LowPrecisionOptimizer* mixed = nullptr;
  zero::ShardedOptimizer* zero = nullptr;  ///< ZeRO.
  lean::LeanOnebitAdam* lean = nullptr;    ///< It has masters of its own.
};

/// Collective: makes the optimizer of a valid Config (Config::validate), for
/// whoever drives one without an Engine. `params`, layout.size() elements of
/// config.precision.dtype, or of 16 bits and behind them fp32
/// (View::joined), is the memory that ZeRO and lean 1-bit Adam
/// update, and must outlive them, as must `comm`; other optimizers are handed
/// parameters at every step. `initial` are the same parameters in any dtype, of
/// which masters are made. `rule`, if not empty, makes what steps in place of
/// the config's Adam: without ZeRO, experts and deepspeed semantics, on fp32
/// parameters or masters. Throws Error(kInvalidArgument) as the optimizer's
/// constructor.
[[nodiscard]] OptimizerStack make_optimizer(comm::Communicator& comm,
                                            const ParameterLayout& layout,
                                            const config::Config& config,
                                            View params, ConstView initial,
                                            const optim::MakeRule& rule = {});

}  // namespace thinwire::engine
