// SPDX-License-Identifier: Apache-2.0
// Changes of lean 1-bit Adam's stage after a load, if the options name another
// one than the state's. Ranks exchange what that takes in the next step.
#include <array>
#include <utility>

#include "lean/impl.h"
#include "optim/saved_state.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::lean {

using optim::StepMeter;
using optim::StepReport;

void LeanOnebitAdam::Impl::set_stage(StepMeter& step) {
  if (will_be_frozen() == is_frozen()) return;
  if (is_frozen())
    return_to_exact();
  else
    begin_compression(step);
}

void LeanOnebitAdam::Impl::set_stage() {
  StepReport unused;
  StepMeter meter(comm, unused);
  set_stage(meter);
}

optim::Notes LeanOnebitAdam::Impl::note_stage() const {
  if (will_be_frozen() == is_frozen()) return {};
  return {is_frozen() ? freeze.note_of_return(steps, true)
                      : freeze.note_of_end(steps)};
}

// Makes a sharded Adam of the codes, lower bits and signs of this rank's shard.
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
  freeze.set_exact();
}

void LeanOnebitAdam::Impl::begin_exact() {
  momentum.clear_residuals();
  momentum.set_participation({});
  momentum.now_values();
  model.adam.exp_avg() = Buffer();
  denominators.clear();
  full.end();
  exact = make_exact({});
}

// Computes m = m / factor and v = ((d / factor) - eps)^2 without its bias. Both
// are 0 for elements that take no part.
void LeanOnebitAdam::Impl::shard_moments(std::vector<float>& m,
                                         std::vector<float>& v) {
  momentum.keep_as_values();
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
      if (!momentum.takes_part(flat + i)) continue;
      const float factor = factors[flat + i];
      m[at.offset + i] = values[flat + i] / factor;
      v[at.offset + i] =
          optim::variance_under(d[i] / factor, c) / c.exp_avg_sq_scale;
    }
  });
}

// Returns nothing if parameters are fp32.
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
