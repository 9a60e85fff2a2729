// SPDX-License-Identifier: Apache-2.0
#include "shard/parameter_values.h"

#include <fmt/format.h>

#include "core/require.h"
#include "optim/checks.h"

namespace thinwire::shard {

std::size_t index_of(const ParameterLayout& layout, std::string_view name) {
  return static_cast<std::size_t>(&layout.parameter(name) -
                                  layout.parameters().data());
}

void require_key(std::string_view key) {
  require(key != "param" && key != "grad", "key", "a state of the rule", key);
}

void require_size(const ParameterLayout& layout, std::size_t parameter,
                  std::span<const float> values) {
  const Parameter& p = layout.parameters()[parameter];
  require(values.size() == p.size, "values",
          fmt::format("{} elements for '{}'", p.size, p.name), values.size());
}

void save_counts(StateDict& state, const StepCounts& counts,
                 const ParameterLayout& layout, int rank) {
  state.put_text("layout", layout.describe());
  state.put_integer("rank", rank);
  state.put_integer("step", counts.steps);
  state.put_integer("skipped_steps", counts.skipped);
}

StepCounts saved_counts(const StateDict& state, const ParameterLayout& layout,
                        int rank) {
  optim::require_layout(state, layout);
  if (state.integer("rank") != rank)
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the state is of rank {}, this is rank {}",
                            state.integer("rank"), rank));
  return {.steps = state.integer("step"),
          .skipped = state.integer("skipped_steps")};
}

}  // namespace thinwire::shard
