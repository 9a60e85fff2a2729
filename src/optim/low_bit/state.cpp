// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "optim/checks.h"
#include "optim/low_bit/impl.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

namespace {

std::vector<std::uint8_t> saved_participation(const StateDict& state,
                                              std::size_t num_elements) {
  if (!state.has_array("participation")) return {};
  const auto saved = state.array("participation", DType::kUInt8, num_elements)
                         .as<std::uint8_t>();
  for (const std::uint8_t value : saved)
    if (value > kLate)
      throw Error(ErrorCode::kCorruptCheckpoint,
                  fmt::format("state array 'participation' must hold values up "
                              "to {}, got {}",
                              static_cast<int>(kLate), value));
  return {saved.begin(), saved.end()};
}

}  // namespace

Buffer saved_floats(const StateDict& state, std::string_view name,
                    std::size_t size) {
  return copy_of(state.array(name, DType::kFloat32, size));
}

Buffer copy_of(ConstView values) {
  Buffer copy(values.size(), values.dtype());
  if (values.bytes() != 0)
    std::memcpy(copy.data(), values.data(), values.bytes());
  return copy;
}

StateDict LowBitOptimizer::Impl::save() const {
  const Adam& adam = model.adam;
  StateDict state;
  state.put_text("optimizer", model.settings.name);
  state.put_text("layout", adam.layout().describe());
  state.put_integer("step", steps);
  state.put_integer("skipped_steps", skipped);
  state.put_integer("verification_is_due", verification_is_due ? 1 : 0);
  gradients.memory.save(state);
  state.put("learning_rates", adam.learning_rates());
  state.put("exp_avg", momentum.copy().view());
  if (!adam.exp_avg_sq().empty() || adam.layout().size() == 0)
    state.put("exp_avg_sq", adam.exp_avg_sq().view());
  momentum.save_participation(state);
  denominator.blocks.save(state);
  momentum.save_residuals(state);
  save_own(state);
  return state;
}

// Everything is read into copies first: a state that does not fit changes
// nothing.
void LowBitOptimizer::Impl::load(const StateDict& state) {
  const std::size_t n = model.size();
  require_layout(state, adam().layout());
  require_text(state, "optimizer", model.settings.name);
  // States of version 0.2 have names in common with DeepSpeed's.
  if (state.has_scalar("semantics"))
    require_text(state, "semantics", "corrected");
  const std::int64_t new_steps = state.integer("step");
  const std::int64_t new_skipped = state.integer("skipped_steps");
  const bool new_due = state.integer("verification_is_due") != 0;
  const LocalGradients::Memory new_memory = LocalGradients::Memory::load(state);
  Buffer m = saved_floats(state, "exp_avg", n);
  Buffer v;
  if (state.has_array("exp_avg_sq")) v = saved_floats(state, "exp_avg_sq", n);
  std::vector<std::uint8_t> elements = saved_participation(state, n);
  LateElements new_late = momentum.saved_late(state, elements);
  BlockDenominators new_blocks =
      BlockDenominators::load(state, model.num_blocks(), n);
  const std::vector<double> rates = adam().learning_rates_in(state);
  momentum.require_residuals(state);
  const Commit commit_own = read_own(state);
  momentum.load_residuals(state);  // the last that can fail

  for (std::size_t g = 0; g < rates.size(); ++g)
    adam().set_learning_rate(g, rates[g]);
  steps = new_steps;
  skipped = new_skipped;
  verification_is_due = new_due;
  gradients.memory = new_memory;
  adam().exp_avg() = std::move(m);
  adam().exp_avg_sq() = std::move(v);
  momentum.now_values();
  momentum.set_participation(std::move(elements));
  momentum.set_late(std::move(new_late));
  denominator.blocks = std::move(new_blocks);
  commit_own();
}

}  // namespace thinwire::optim
