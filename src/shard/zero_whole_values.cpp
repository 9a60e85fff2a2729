// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "optim/checks.h"
#include "shard/checks.h"
#include "shard/zero_impl.h"
#include "thinwire/comm/agreement.h"

// Whole values, whoever owns them; states elsewhere, and saved.
namespace thinwire::shard {

ShardGroup& ZeroOptimizer::Impl::group_of(std::size_t parameter) const {
  for (const auto& group : groups)
    if (group->holds(parameter)) return *group;
  return *groups.front();
}

std::vector<float> ZeroOptimizer::Impl::read(std::size_t parameter,
                                             std::string_view what,
                                             View grads) {
  ShardGroup& group = group_of(parameter);
  if (what != "grad") return group.read(parameter, what);
  finish(grads);
  std::vector<float> values = group.read(parameter, what);
  const double divisor = scale.value() * group.gradients().divisor();
  for (float& value : values) value = static_cast<float>(value / divisor);
  return values;
}

void ZeroOptimizer::Impl::write(std::size_t parameter, std::string_view what,
                                std::span<const float> values) {
  ShardGroup& group = group_of(parameter);
  if (what != "grad") return group.write(parameter, what, values);
  finish({});
  const double divisor = scale.value() * group.gradients().divisor();
  std::vector<float> sums_of_ranks;
  for (const float value : values)
    sums_of_ranks.push_back(static_cast<float>(value * divisor));
  group.write(parameter, what, sums_of_ranks);
}

std::vector<float> ZeroOptimizer::full_parameter(std::string_view name) {
  return impl_->read(index_of(impl_->layout, name), "param", {});
}

std::vector<float> ZeroOptimizer::full_gradient(std::string_view name,
                                                View grads) {
  const std::size_t index = index_of(impl_->layout, name);
  if (!grads.empty())
    optim::require_view("grads", grads, impl_->layout.size(), true, true);
  const bool is_there = grads.empty()
                            ? impl_->window.awaits_step()
                            : reduces_early() && impl_->window.backwards() == 0;
  if (!is_there)
    refuse("full_gradient: only between the last backward and step()");
  impl_->require_same_array(grads);
  std::vector<float> values = impl_->read(index, "grad", grads);
  // It is reduced now: nothing may be added any more.
  impl_->window.close();
  return values;
}

std::vector<float> ZeroOptimizer::full_state(std::string_view name,
                                             std::string_view key) {
  require_key(key);
  return impl_->read(index_of(impl_->layout, name), key, {});
}

void ZeroOptimizer::set_full_parameter(std::string_view name,
                                       std::span<const float> values) {
  const std::size_t index = index_of(impl_->layout, name);
  require_size(impl_->layout, index, values);
  impl_->write(index, "param", values);
}

void ZeroOptimizer::set_full_gradient(std::string_view name,
                                      std::span<const float> values) {
  const std::size_t index = index_of(impl_->layout, name);
  require_size(impl_->layout, index, values);
  if (!impl_->window.awaits_step())
    refuse("set_full_gradient: only between the last backward and step()");
  impl_->write(index, "grad", values);
  impl_->window.close();
}

void ZeroOptimizer::set_full_state(std::string_view name, std::string_view key,
                                   std::span<const float> values) {
  require_key(key);
  const std::size_t index = index_of(impl_->layout, name);
  require_size(impl_->layout, index, values);
  impl_->write(index, key, values);
}

void ZeroOptimizer::read_masters(ConstView params) {
  require(params.size() == impl_->layout.size(), "params",
          fmt::format("{} elements", impl_->layout.size()), params.size());
  for (const auto& group : impl_->groups) group->read_masters(params);
}

void ZeroOptimizer::offload_states() {
  for (const auto& group : impl_->groups) group->offload_states();
  impl_->has_states = false;
}

void ZeroOptimizer::reload_states() {
  for (const auto& group : impl_->groups) group->reload_states();
  impl_->has_states = true;
}

// ---- saved state

namespace {

std::string prefix_of(std::size_t group) {
  return group == 0 ? "" : fmt::format("experts.{}.", group);
}

}  // namespace

StateDict ZeroOptimizer::state_dict() const {
  StateDict state;
  for (std::size_t g = 0; g < impl_->groups.size(); ++g)
    impl_->groups[g]->save(state, prefix_of(g));
  save_counts(state, impl_->counts, impl_->layout, impl_->comm.rank());
  if (impl_->scale.is_used()) impl_->scale.save(state);
  return state;
}

void ZeroOptimizer::load_state_dict(const StateDict& state) {
  precision::LossScale scale = impl_->scale;
  StepCounts counts;
  const auto& groups = impl_->groups;
  comm::require_everywhere(impl_->comm, [&] {
    counts = saved_counts(state, impl_->layout, impl_->comm.rank());
    if (scale.is_used()) scale.load(state);
    for (std::size_t g = 0; g < groups.size(); ++g)
      groups[g]->require_fits(state, prefix_of(g));
  });
  for (std::size_t g = 0; g < groups.size(); ++g)
    groups[g]->load(state, prefix_of(g));
  for (const auto& group : groups) group->gather_from_masters();
  impl_->scale = scale;
  impl_->counts = counts;
}

}  // namespace thinwire::shard
