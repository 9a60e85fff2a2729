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

/// The optimizer that a Config selects, in its precision. At most one of the
/// pointers is set; it is `optimizer` itself with another type.
struct OptimizerStack {
  std::unique_ptr<optim::Optimizer> optimizer;
  /// Set for parameters of 16 bits without ZeRO and lean 1-bit Adam.
  precision::LowPrecisionOptimizer* mixed = nullptr;
  zero::ShardedOptimizer* zero = nullptr;  ///< Set with ZeRO.
  lean::LeanOnebitAdam* lean = nullptr;    ///< Has its own masters.
};

/// Makes the optimizer of a valid Config (Config::validate), for callers that
/// use one without an Engine. Collective. `params` has layout.size() elements
/// of config.precision.dtype, or of 16 bits followed by fp32 (View::joined).
/// ZeRO and lean 1-bit Adam update it, so it must outlive them, as must `comm`;
/// other optimizers receive parameters at every step. `initial` holds the same
/// parameters in any dtype: masters are made of it, except with ZeRO. Lean
/// 1-bit Adam uses it only if it is fp32. `rule`, if not empty,
/// replaces the config's Adam: without ZeRO, experts and deepspeed semantics,
/// on fp32 parameters or masters. Throws Error(kInvalidArgument) like the
/// optimizer's constructor.
[[nodiscard]] OptimizerStack make_optimizer(comm::Communicator& comm,
                                            const ParameterLayout& layout,
                                            const config::Config& config,
                                            View params, ConstView initial,
                                            const optim::MakeRule& rule = {});

/// Calls Optimizer::set_masters() after the program has written some of the
/// parameters: a master that rounds to its 16-bit parameter keeps its value.
/// Local. With deepspeed semantics, and with low-bit parameters of ZeRO, all
/// masters become their parameters. Does nothing in compressed steps of lean
/// 1-bit Adam. There a parameter keeps its 16 low bits, at most half a unit in
/// its last place.
void read_written(const OptimizerStack& stack, ConstView params);

}  // namespace thinwire::engine
