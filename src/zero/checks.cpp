// SPDX-License-Identifier: Apache-2.0
#include "zero/checks.h"

#include <fmt/format.h>

#include <cmath>

#include "optim/checks.h"

namespace thinwire::zero {

std::size_t index_of(const ParameterLayout& layout, std::string_view name) {
  return static_cast<std::size_t>(&layout.parameter(name) -
                                  layout.parameters().data());
}

std::size_t index_for(const ParameterLayout& layout, std::string_view name,
                      std::span<const float> values) {
  const Parameter& p = layout.parameter(name);
  require(values.size() == p.size, "values",
          fmt::format("{} elements for '{}'", p.size, p.name), values.size());
  return index_of(layout, name);
}

void require_gradient(const Parameter& parameter, DType dtype,
                      ConstView gradient) {
  const bool fits =
      gradient.dtype() == dtype || gradient.dtype() == DType::kFloat32;
  if (!fits || gradient.size() != parameter.size)
    reject(
        fmt::format("gradient of '{}' must be float32 or {} of {} "
                    "elements, got {} of {}",
                    parameter.name, to_string(dtype), parameter.size,
                    to_string(gradient.dtype()), gradient.size()));
}

void require_same_memory(const optim::StepInput& input, ConstView params) {
  require_view("params", input.params, params.size(), true, true);
  require(input.params.data() == params.data() &&
              input.params.dtype() == params.dtype(),
          "params", "the memory given at construction", "other memory");
  require(input.low_precision.empty(), "low_precision",
          "empty: parameters are rounded here",
          fmt::format("{} elements", input.low_precision.size()));
  require(std::isfinite(input.loss_scale) && input.loss_scale > 0, "loss_scale",
          "finite and > 0", input.loss_scale);
}

void require_step(const optim::StepInput& input,
                  const exchange::GradientWindow& window, ConstView params) {
  if (window.in_backward()) refuse("step: inside a backward");
  require_same_memory(input, params);
  const bool has_come = window.backwards() > 0;
  if (input.grads.empty() && !has_come && params.size() > 0)
    refuse("step: there was no backward since the last step");
  if (!input.grads.empty() || !has_come)
    require_view("grads", input.grads, params.size(), true, true);
  require_params_and_grads(input.params, input.grads);
  if (!input.grads.empty() && has_come)
    refuse("step: gradients were handed over one by one; give no others");
}

StateDict shard_owner(const ParameterLayout& layout, int rank) {
  StateDict owner = optim::layout_owner(layout);
  owner.put_integer("rank", rank);
  return owner;
}

void require_shard_owner(const StateDict& state, const ParameterLayout& layout,
                         int rank) {
  optim::require_layout(state, layout);
  if (state.integer("rank") != rank)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the state is of rank {}, this is rank {}",
                            state.integer("rank"), rank));
}

}  // namespace thinwire::zero
