// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/require.h"
#include "thinwire/core/error.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"

/// Checks of what optimizers are given: a step's input, and saved state. Unless
/// they say otherwise they throw Error(kInvalidArgument) naming the argument,
/// its range and the value given.
namespace thinwire::optim {

inline void require_learning_rate(double value) {
  require(std::isfinite(value) && value >= 0, "learning_rate",
          "finite and >= 0", value);
}

inline void require_group(std::size_t group, std::size_t num_groups) {
  require(group < num_groups, "group", fmt::format("below {}", num_groups),
          group);
}

/// fp16 or bf16.
[[nodiscard]] inline bool is_16_bit(DType dtype) noexcept {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

/// A flat array that is to be float32, or one of the 16-bit types too.
inline void require_view(std::string_view name, View view, std::size_t size,
                         bool may_be_float32, bool may_be_16_bit) {
  const bool fits = view.dtype() == DType::kFloat32
                        ? may_be_float32
                        : may_be_16_bit && is_16_bit(view.dtype());
  if (fits && view.size() == size) return;
  std::string_view types = "float32, float16 or bfloat16";
  if (!may_be_16_bit) types = "float32";
  if (!may_be_float32) types = "float16 or bfloat16";
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} must be {} of {} elements, got {} of {}", name,
                          types, size, to_string(view.dtype()), view.size()));
}

/// What UpdateRule::apply_part() was given.
inline void require_part(Range part, const UpdateArrays& arrays,
                         const ParameterLayout& layout) {
  require(
      part.offset <= layout.size() && part.size <= layout.size() - part.offset,
      "part", fmt::format("within {}", layout.size()),
      fmt::format("{} of size {}", part.offset, part.size));
  require(arrays.params.size() == part.size &&
              arrays.grads.size() == part.size &&
              (arrays.low_precision.empty() ||
               arrays.low_precision.size() == part.size),
          "arrays", fmt::format("of {} elements", part.size),
          fmt::format("params of {}, grads of {}, low_precision of {}",
                      arrays.params.size(), arrays.grads.size(),
                      arrays.low_precision.size()));
}

/// What step() was given; but for its parameters' dtype.
inline void require_step_input(const StepInput& input, std::size_t size) {
  require_view("params", input.params, size, true, true);
  require_view("grads", input.grads, size, true, true);
  if (!input.low_precision.empty())
    require_view("low_precision", input.low_precision, size, false, true);
  require(std::isfinite(input.loss_scale) && input.loss_scale > 0, "loss_scale",
          "finite and > 0", input.loss_scale);
}

/// What optimizers that keep fp32 parameters were given.
inline void require_float32_step_input(const StepInput& input,
                                       std::size_t size) {
  require_view("params", input.params, size, true, false);
  require_step_input(input, size);
}

/// Saved state must be of the same layout; throws Error(kCorruptCheckpoint).
inline void require_layout(const StateDict& state,
                           const ParameterLayout& layout) {
  if (state.text("layout") != layout.describe())
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the state is of another parameter layout: it "
                            "begins with '{}', this one with '{}'",
                            state.text("layout").substr(0, 60),
                            layout.describe().substr(0, 60)));
}

/// Saved state must say the same of `key`; throws Error(kCorruptCheckpoint).
inline void require_text(const StateDict& state, const char* key,
                         std::string_view own) {
  if (state.text(key) != own)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the state's {} is {}, this optimizer's {}", key,
                            state.text(key), own));
}

/// What every optimizer counts.
struct StepCounts {
  std::int64_t steps = 0;
  std::int64_t skipped = 0;
};

/// The state of an optimizer that has nothing but a rule and counts.
[[nodiscard]] inline StateDict rule_state(const UpdateRule& rule,
                                          const StepCounts& counts) {
  StateDict state;
  rule.save(state);
  state.put_text("optimizer", std::string(rule.name()));
  state.put_text("layout", rule.layout().describe());
  state.put_integer("step", counts.steps);
  state.put_integer("skipped_steps", counts.skipped);
  return state;
}

/// Loads the rule and returns the counts; throws Error(kCorruptCheckpoint)
/// before anything changes.
[[nodiscard]] inline StepCounts load_rule_state(UpdateRule& rule,
                                                const StateDict& state) {
  require_layout(state, rule.layout());
  require_text(state, "optimizer", rule.name());
  const StepCounts counts{.steps = state.integer("step"),
                          .skipped = state.integer("skipped_steps")};
  rule.load(state);
  return counts;
}

/// A saved list of elements of a layout; throws Error(kCorruptCheckpoint)
/// unless they ascend and lie in it.
[[nodiscard]] inline std::vector<std::size_t> saved_indices(
    const StateDict& state, std::string_view name, std::size_t num_elements) {
  const auto saved = state.array(name, DType::kInt64, state.array(name).size())
                         .as<std::int64_t>();
  std::vector<std::size_t> indices;
  std::int64_t least = 0;
  for (const std::int64_t index : saved) {
    if (index < least || index >= static_cast<std::int64_t>(num_elements))
      throw Error(ErrorCode::kCorruptCheckpoint,
                  fmt::format("state array '{}' must hold ascending numbers "
                              "below {}, got {}",
                              name, num_elements, index));
    indices.push_back(static_cast<std::size_t>(index));
    least = index + 1;
  }
  return indices;
}

}  // namespace thinwire::optim
