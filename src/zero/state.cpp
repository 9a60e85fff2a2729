// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "optim/averages/unit_average.h"
#include "optim/checks.h"
#include "optim/experts/joined_state.h"
#include "thinwire/comm/agreement.h"
#include "zero/checks.h"
#include "zero/impl.h"

// Access to values on any rank, and saved states.
namespace thinwire::zero {

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
  require_same_array(grads);
  finish(grads);
  std::vector<float> values = group.read(parameter, what);
  const double divisor = group.gradients().divisor(scale.value());
  for (float& value : values) value = static_cast<float>(value / divisor);
  return values;
}

void ZeroOptimizer::Impl::write(std::size_t parameter, std::string_view what,
                                std::span<const float> values) {
  ShardGroup& group = group_of(parameter);
  if (what != "grad") return group.write(parameter, what, values);
  finish({});
  const double divisor = group.gradients().divisor(scale.value());
  std::vector<float> sums_of_ranks;
  for (const float value : values)
    sums_of_ranks.push_back(static_cast<float>(value * divisor));
  group.write(parameter, what, sums_of_ranks);
}

void ZeroOptimizer::set_masters(ConstView params) {
  require(params.size() == impl_->layout.size(), "params",
          fmt::format("{} elements", impl_->layout.size()), params.size());
  for (const auto& group : impl_->groups) group->set_masters(params);
}

// ---- saved state

namespace {

std::string prefix_of(std::size_t group) {
  return group == 0 ? "" : fmt::format("experts.{}.", group);
}

}  // namespace

// Describes the state. Arrays of experts follow those of the dense parameters.
// With low-bit exchanges each group has residuals, so the experts' arrays are
// named with a prefix.
optim::State ZeroOptimizer::state() const {
  optim::State state = impl_->groups.front()->state();
  for (std::size_t g = 1; g < impl_->groups.size(); ++g) {
    optim::State own = impl_->groups[g]->state();
    if (impl_->joins_states()) {
      optim::join(state, std::move(own), "");
      continue;
    }
    optim::join_under(state, std::move(own), prefix_of(g));
    state.common.put_integer("expert_groups", static_cast<std::int64_t>(g));
  }
  impl_->counts.save(state.common);
  if (impl_->scale.is_used()) impl_->scale.save(state.common);
  state.owner = shard_owner(impl_->layout, impl_->comm.rank());
  for (std::size_t g = 0; g < impl_->groups.size(); ++g)
    state.owner.put_text(prefix_of(g) + "shards",
                         impl_->groups[g]->shards().describe());
  return state;
}

std::vector<StateDict> ZeroOptimizer::Impl::cut(StateDict state) const {
  std::vector<StateDict> of_groups(groups.size());
  if (groups.size() > 1 && joins_states()) {
    std::vector<optim::State> parts;
    for (const auto& group : groups) parts.push_back(group->state());
    return optim::cut(std::move(state), parts, "");
  }
  for (std::size_t g = 1; g < groups.size(); ++g)
    of_groups[g] = state.part(prefix_of(g));
  of_groups.front() = std::move(state);
  return of_groups;
}

optim::Optimizer::Adoption ZeroOptimizer::adopt(StateDict state) {
  const auto counts = optim::StepCounts::load(state);
  precision::LossScale scale(impl_->options.dtype, impl_->options.loss_scale);
  scale.load_if_there(state);
  optim::Notes notes;
  optim::note_unused_averages(state, notes);
  std::vector<StateDict> states = impl_->cut(std::move(state));
  std::vector<optim::Adoption> of_groups;
  for (std::size_t g = impl_->groups.size(); g-- > 0;)
    of_groups.push_back(impl_->groups[g]->adopt(states[g]));
  return [this, counts, scale, of_groups, notes] {
    for (const optim::Adoption& adopt : of_groups) adopt();
    impl_->counts = counts;
    impl_->scale = scale;
    return notes;
  };
}

optim::Notes ZeroOptimizer::load_state_dict(const StateDict& state) {
  Adoption adopted;
  comm::require_everywhere(impl_->comm, [&] {
    require_owner(state);
    adopted = adopt(optim::copy_to_adopt(state));
  });
  optim::Notes notes = adopted();
  for (const auto& group : impl_->groups) group->gather_parameters();
  return notes;
}

void ZeroOptimizer::require_owner(const StateDict& state) const {
  require_shard_owner(state, impl_->layout, impl_->comm.rank());
  for (std::size_t g = 0; g < impl_->groups.size(); ++g) {
    const std::string own = impl_->groups[g]->shards().describe();
    const std::string& saved = state.text(prefix_of(g) + "shards");
    if (saved != own)
      throw Error(ErrorCode::kCorruptCheckpoint,
                  fmt::format("the state is of other shards: '{}', not '{}'",
                              saved.substr(0, 60), own.substr(0, 60)));
  }
  impl_->scale.require_in(state);
}

}  // namespace thinwire::zero
