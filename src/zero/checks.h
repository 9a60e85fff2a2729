// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "exchange/gradient_window.h"
#include "optim/checks.h"
#include "optim/saved_state.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/optimizer.h"

/// What sharded optimizers check: gradients, steps, whole values and saved
/// states.
namespace thinwire::zero {

/// Of a parameter in its layout; throws Error(kInvalidArgument).
[[nodiscard]] std::size_t index_of(const ParameterLayout& layout,
                                   std::string_view name);
/// A key that stands for a state: what is none of the rule's has functions of
/// its own. Throws Error(kInvalidArgument).
void require_key(std::string_view key);
void require_size(const ParameterLayout& layout, std::size_t parameter,
                  std::span<const float> values);

/// What ShardedOptimizer::collect is given: fp32, or `dtype`, that of the
/// parameters. Throws Error(kInvalidArgument).
void require_gradient(const Parameter& parameter, DType dtype,
                      ConstView gradient);

/// Parameters, loss scale and low_precision of a step whose parameters are
/// `params`, the memory given at construction. Throws Error(kInvalidArgument).
void require_same_memory(const optim::StepInput& input, ConstView params);

/// What step() is given, `params` being the memory given at construction, and
/// whether there is something to step with. Throws Error(kInvalidArgument),
/// Error(kFailedPrecondition).
void require_step(const optim::StepInput& input,
                  const exchange::GradientWindow& window, ConstView params);

/// Scalars that say whose state it is: layout and rank.
[[nodiscard]] StateDict shard_owner(const ParameterLayout& layout, int rank);
/// Throws Error(kCorruptCheckpoint) if the state is of another layout or rank.
void require_shard_owner(const StateDict& state, const ParameterLayout& layout,
                         int rank);

}  // namespace thinwire::zero
