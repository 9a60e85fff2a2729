// SPDX-License-Identifier: Apache-2.0
// End of lean 1-bit Adam's exact stage, and changes of stage after a load.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "lean/impl.h"
#include "optim/saved_state.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/adam.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::lean {

using optim::StepMeter;
using optim::StepReport;

void LeanOnebitAdam::Impl::for_own_blocks(
    const std::function<void(std::size_t, Range)>& body) {
  const auto rank = static_cast<std::size_t>(comm.rank());
  struct Own {
    std::size_t block;
    Range at;
  };
  std::vector<Own> own;
  for (std::size_t k = 0; k < shards.buckets().size(); ++k) {
    const exchange::Bucket& bucket = model.layout.blocks.buckets()[k];
    const zero::ShardBucket& of = shards.buckets()[k];
    const Range served = model.places.served_of(bucket);
    for (std::size_t b = served.offset; b < served.end(); ++b) {
      const Range& values = model.block(b);
      own.push_back(
          {b,
           {of.positions[rank] + values.offset - of.pieces[rank].offset,
            values.size}});
    }
  }
  model.pool.for_each(own.size(),
                      [&](std::size_t i) { body(own[i].block, own[i].at); });
}

Buffer LeanOnebitAdam::Impl::of_exact(const char* name) const {
  const optim::State state = exact->state();
  const optim::StateArray& array = *state.find(name);
  Buffer values(array.size, array.dtype, Fill::kNone);
  array.read({0, array.size}, values.view());
  return values;
}

// Computes sums cell by cell and adds them in flat order, so that they do not
// depend on which rank owns which cell.
double LeanOnebitAdam::Impl::norm_of_variance(StepMeter& step) {
  const optim::State state = exact->state();
  const optim::StateArray& v = *state.find("exp_avg_sq");
  std::vector<double> sums(model.num_blocks());
  for_own_blocks([&](std::size_t b, Range at) {
    std::array<float, kernels::kSumChunk> values;
    const View own(values.data(), at.size, DType::kFloat32);
    v.read(at, own);
    kernels::chunk_sums_of_abs(own, {&sums[b], 1});
    const std::size_t group = model.layout.block_group[b];
    sums[b] /= 1 - std::pow(model.adam.group_options(group).beta2,
                            static_cast<double>(steps));
  });
  // The sums of other ranks' cells are 0 here, so the addition is exact.
  step.waiting([&] {
    comm.all_reduce(View(sums.data(), sums.size(), DType::kFloat64),
                    comm::ReduceOp::kSum);
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

void LeanOnebitAdam::Impl::begin_compression(StepMeter& step) {
  const MemoryScope scope(MemoryKind::kStates);
  Buffer factors;
  // d, in codes
  encode_denominators(factors);
  denominators.gather(step);
  momentum.participation.set(denominators.participation());
  // m <- the server's signs of m
  keep_momentum(factors.view());
  // e_i = (1 - beta1) clip e_i
  inherit_residuals(step.report().clip_factor);
  // p in fp32: bf16 plus the missing bits
  gather_parameters(step);
  exact.reset();
  freeze.set_frozen(steps);
}

void LeanOnebitAdam::Impl::encode_denominators(Buffer& factors) {
  Buffer d = of_exact("exp_avg_sq");
  factors = Buffer::of<float>(d.size());
  denominators.begin();
  for_own_blocks([&](std::size_t b, Range at) {
    const auto own = d.as<float>().subspan(at.offset, at.size);
    const std::size_t flat = model.block(b).offset;
    std::array<std::uint8_t, kernels::kSumChunk> elements;
    for (std::size_t i = 0; i < at.size; ++i)
      elements[i] = model.masks.leaves_out(flat + i) ? optim::kOut
                    : own[i] == 0                    ? optim::kLate
                                                     : optim::kTakesPart;
    kernels::denominator(
        own.data(), own.data(), own.size(),
        model.adam.coefficients(model.layout.block_group[b], steps, 1));
    const auto of_block =
        denominators.encode(b, own, std::span(elements).first(at.size));
    std::ranges::copy(of_block, factors.as<float>().begin() +
                                    static_cast<std::ptrdiff_t>(at.offset));
  });
}

// Elements that take no part or have no finite denominator get no momentum.
void LeanOnebitAdam::Impl::keep_momentum(ConstView factors) {
  Buffer m = of_exact("exp_avg");
  std::vector<const float*> of_block(model.num_blocks());
  for_own_blocks([&](std::size_t b, Range at) {
    const auto own = m.as<float>().subspan(at.offset, at.size);
    const auto by = factors.as<float>().subspan(at.offset, at.size);
    for (std::size_t i = 0; i < at.size; ++i) {
      const bool takes_part =
          momentum.participation.takes_part(model.block(b).offset + i);
      own[i] = takes_part && by[i] != 0 ? own[i] * by[i] : 0;
    }
    of_block[b] = own.data();
  });
  if (!model.compresses()) {  // the shard has all elements
    model.adam.exp_avg() = std::move(m);
    momentum.form.now_values();
    return;
  }
  exchange::SignExchange& all = momentum.exchange.all();
  all.share(
      [&](std::size_t b) { return kernels::SignInput{.values = of_block[b]}; });
  momentum.form.keep_as_signs(all);
}

void LeanOnebitAdam::Impl::inherit_residuals(double clip_factor) {
  if (model.size() == 0 || exact->state().find(optim::kWorkerError) == nullptr)
    return;
  Buffer of_gradients = of_exact(optim::kWorkerError);
  Buffer worker(of_gradients.size(), model.settings.residual_dtype);
  kernels::convert(of_gradients.view(), worker.view());
  momentum.exchange.inherit(
      {.worker = std::move(worker), .server = {}, .clip = clip_factor},
      denominators.heavy());
}

// Gathers bucket by bucket, because all masters are freed together. fp32
// parameters are complete already, unless they are low-bit replicas.
void LeanOnebitAdam::Impl::gather_parameters(StepMeter& step) {
  full.begin();
  if (!full.are_split() && !sends_low_bits()) return;
  const optim::State state = exact->state();
  const optim::StateArray& masters = *state.find("masters");
  const auto rank = static_cast<std::size_t>(comm.rank());
  for (const zero::ShardBucket& bucket : shards.buckets()) {
    Buffer values(bucket.range.size, DType::kFloat32, Fill::kNone);
    const Range& piece = bucket.within[rank];
    const View own = values.view().subview(piece.offset, piece.size);
    masters.read({bucket.positions[rank], piece.size}, own);
    step.waiting([&] {
      comm.queue_all_gather(own, values.view(), bucket.within).wait();
    });
    full.write(bucket.range, values.as<float>());
  }
}

// ---- another stage than a loaded state has; ranks exchange its data in the
// next step

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

// Makes a sharded Adam from the codes, lower bits and signs of this rank's
// shard.
void LeanOnebitAdam::Impl::return_to_exact() {
  const MemoryScope scope(MemoryKind::kStates);
  std::vector<float> m, v;
  shard_moments(m, v);
  const std::vector<float> masters = shard_masters();
  begin_exact();
  StateDict state = optim::copy_of(exact->state());
  state.put("exp_avg", m);
  state.put("exp_avg_sq", v);
  if (!masters.empty()) state.put("masters", masters);
  optim::StepCounts{.steps = steps, .skipped = skipped}.save(state);
  exact->adopt(std::move(state))();
  freeze.set_exact();
}

void LeanOnebitAdam::Impl::begin_exact() {
  momentum.exchange.clear_residuals();
  momentum.participation.set({});
  momentum.form.now_values();
  model.adam.exp_avg() = Buffer();
  denominators.clear();
  full.end();
  exact.reset();
  exact = make_exact({});
  for (std::size_t g = 0; g < model.adam.num_groups(); ++g) {
    exact->groups().set_learning_rate(g, model.adam.learning_rate(g));
    exact->groups().set_weight_decay(g, model.adam.weight_decay(g));
  }
}

// Computes m = m / factor and v = (d / factor - eps)^2 without its bias
// correction. Both are 0 for elements that take no part.
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
