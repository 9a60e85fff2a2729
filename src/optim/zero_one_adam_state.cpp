// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <memory>
#include <utility>

#include "optim/zero_one_adam_impl.h"

namespace thinwire::optim {

// ---- schedule and state
Phase ZeroOneAdamImpl::phase() const {
  if (is_frozen())
    return schedule.syncs(steps + 1) ? Phase::kCompressed : Phase::kLocal;
  return schedule.updates_variance(steps + 1) ? Phase::kExact
                                              : Phase::kCompressed;
}

std::string ZeroOneAdamImpl::describe_schedule() const {
  return schedule.describe();
}

void ZeroOneAdamImpl::save_own(StateDict& state) const {
  schedule.save(state);
  state.put_integer("var_updates", var_updates);
  state.put_integer("frozen", is_frozen() ? 1 : 0);
  state.put("denominator", denominator.view());
  state.put("lrs", lrs);
  state.put("decay", decay);
  state.put_integer("accumulated", accumulated ? 1 : 0);
  if (!is_frozen()) return;
  state.put("origin", origin.view());
  if (accumulated) state.put("momentum_accumulator", accumulator.view());
}

LowBitOptimizer::Impl::Commit ZeroOneAdamImpl::read_own(
    const StateDict& state) {
  const std::size_t n = adam.layout().size();
  ZeroOneSchedule new_schedule = schedule;
  new_schedule.load(state);
  const std::int64_t updates = state.integer("var_updates");
  const auto per_group = [&](const char* name) {
    const auto values =
        state.array(name, DType::kFloat64, lrs.size()).as<double>();
    return std::vector<double>(values.begin(), values.end());
  };
  const std::vector<double> new_lrs = per_group("lrs");
  const std::vector<double> new_decay = per_group("decay");
  const bool has_u = state.integer("accumulated") != 0;
  const bool frozen = state.integer("step") >= options.var_freeze_step;
  auto buffers = std::make_shared<std::array<Buffer, 3>>();
  auto& [d, theta, u] = *buffers;
  d = saved_floats(state, "denominator", n);
  if (updates > 0 && !parts.blocks.blocks().empty())
    (void)state.array("denominator_medians");
  if (frozen) theta = saved_floats(state, "origin", n);
  if (frozen)
    u = has_u ? saved_floats(state, "momentum_accumulator", n)
              : Buffer::of<float>(n);
  if (!frozen) (void)state.array("exp_avg_sq", DType::kFloat32, n);
  return [=, this] {
    schedule = new_schedule;
    var_updates = updates;
    lrs = new_lrs;
    decay = new_decay;
    accumulated = has_u;
    denominator = std::move((*buffers)[0]);
    origin = std::move((*buffers)[1]);
    accumulator = std::move((*buffers)[2]);
    mean_lrs.clear();
  };
}

}  // namespace thinwire::optim
