// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "optim/checks.h"
#include "optim/saved_state.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/gradient_window.h"
#include "thinwire/optim/optimizer.h"

/// Checks that sharded optimizers share: of gradients, steps, whole values and
/// saved states.
namespace thinwire::zero {

/// Returns the index of a parameter in its layout. Throws
/// Error(kInvalidArgument) for an unknown name.
[[nodiscard]] std::size_t index_of(const ParameterLayout& layout,
                                   std::string_view name);
/// Returns the index of a parameter. Throws Error(kInvalidArgument) if the name
/// is unknown or the number of values differs from the parameter's elements.
[[nodiscard]] std::size_t index_for(const ParameterLayout& layout,
                                    std::string_view name,
                                    std::span<const float> values);

/// Throws Error(kInvalidArgument) unless a gradient has its parameter's size
/// and is either fp32 or of the parameters' `dtype`.
void require_gradient(const Parameter& parameter, DType dtype,
                      ConstView gradient);

/// Throws Error(kInvalidArgument) unless a step gets `params` (the memory given
/// at construction), a loss scale above 0, and no low_precision.
void require_same_memory(const optim::StepInput& input, ConstView params);

/// Checks a step's input like require_same_memory(), and its gradients. Throws
/// Error(kFailedPrecondition) inside a backward, and unless gradients came
/// either in `window` or as an array.
void require_step(const optim::StepInput& input,
                  const exchange::GradientWindow& window, ConstView params);

/// Returns the scalars that name a state's owner: layout and rank.
[[nodiscard]] StateDict shard_owner(const ParameterLayout& layout, int rank);
/// Throws Error(kCorruptCheckpoint) if the state has another layout or rank.
void require_shard_owner(const StateDict& state, const ParameterLayout& layout,
                         int rank);

}  // namespace thinwire::zero
