// SPDX-License-Identifier: Apache-2.0
// The stage that options of lean 1-bit Adam name, where a state was in the
// other one. What ranks then have to exchange waits for the next step.
#include <array>
#include <utility>

#include "lean/impl.h"
#include "optim/saved_state.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::lean {

using optim::StepMeter;
using optim::StepReport;

bool LeanOnebitAdam::Impl::will_be_frozen() const {
  if (is_frozen()) return !plan.names_later(steps);
  return is_of_own_state && hold.until() == 0 && plan.names_passed(steps);
}

void LeanOnebitAdam::Impl::set_stage(StepMeter& step) {
  if (will_be_frozen() == is_frozen()) return;
  if (is_frozen())
    return_to_exact();
  else
    freeze(step);
}

void LeanOnebitAdam::Impl::set_stage() {
  StepReport unused;
  StepMeter meter(comm, unused);
  set_stage(meter);
}

optim::Notes LeanOnebitAdam::Impl::note_stage() const {
  if (will_be_frozen() == is_frozen()) return {};
  return {is_frozen()
              ? optim::note_of_return(kFreezeStep, plan.step(), steps, true)
              : optim::note_of_end(kFreezeStep, plan.step(), steps)};
}

void LeanOnebitAdam::Impl::begin_exact() {
  momentum.exchange.clear_residuals();
  momentum.participation.set({});
  momentum.form.now_values();
  model.adam.exp_avg() = Buffer();
  denominators.clear();
  full.end();
  exact = make_exact({});
  frozen_step = 0;
}

// A new sharded Adam with what codes, lower bits and signs say of this rank's
// shard.
void LeanOnebitAdam::Impl::return_to_exact() {
  const MemoryScope scope(MemoryKind::kStates);
  std::vector<float> m, v;
  shard_moments(m, v);
  const std::vector<float> masters = shard_masters();
  begin_exact();
  for (std::size_t g = 0; g < model.adam.num_groups(); ++g) {
    exact->groups().set_learning_rate(g, model.adam.learning_rate(g));
    exact->groups().set_weight_decay(g, model.adam.weight_decay(g));
  }
  StateDict state = optim::copy_of(exact->state());
  state.put("exp_avg", m);
  state.put("exp_avg_sq", v);
  if (!masters.empty()) state.put("masters", masters);
  optim::StepCounts{.steps = steps, .skipped = skipped}.save(state);
  exact->adopt(std::move(state))();
  hold.hold_until(0);
}

// m = m / factor,  v = ((d / factor) - eps)^2, free of bias; both are 0 where
// an element takes no part.
void LeanOnebitAdam::Impl::shard_moments(std::vector<float>& m,
                                         std::vector<float>& v) {
  momentum.form.keep_as_values();
  std::vector<float> factors(model.size(), 1.0f);
  for (const optim::HeavyElement& heavy : denominators.heavy())
    factors[heavy.index] = heavy.factor;
  m.resize(shards.shard_size(comm.rank()));
  v.resize(m.size());
  const auto values = std::as_const(model.adam).exp_avg().as<float>();
  for_own_blocks([&](std::size_t b, Range at) {
    const kernels::AdamCoefficients c =
        model.adam.coefficients(model.layout.block_group[b], steps, 1);
    std::array<float, kernels::kSumChunk> scratch;
    const auto d = denominators.of_block(b, scratch);
    const std::size_t flat = model.block(b).offset;
    for (std::size_t i = 0; i < at.size; ++i) {
      if (!momentum.participation.takes_part(flat + i)) continue;
      const float factor = factors[flat + i];
      m[at.offset + i] = values[flat + i] / factor;
      v[at.offset + i] =
          optim::variance_under(d[i] / factor, c) / c.exp_avg_sq_scale;
    }
  });
}

// Of parameters of fp32 there are none.
std::vector<float> LeanOnebitAdam::Impl::shard_masters() {
  if (!full.are_split()) return {};
  std::vector<float> masters(shards.shard_size(comm.rank()));
  const auto rank = static_cast<std::size_t>(comm.rank());
  for (const zero::ShardBucket& bucket : shards.buckets())
    full.read(bucket.pieces[rank],
              std::span(masters).subspan(bucket.positions[rank],
                                         bucket.pieces[rank].size));
  return masters;
}

}  // namespace thinwire::lean
