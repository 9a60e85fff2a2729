// SPDX-License-Identifier: Apache-2.0
#include "zero/shard_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/wait_ignoring_errors.h"
#include "core/require.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"
#include "zero/gradient_shard.h"

namespace thinwire::zero {

namespace {

std::vector<bool> held(const ParameterLayout& layout,
                       const ShardLayout& shards) {
  std::vector<bool> holds(layout.parameters().size());
  for (const std::size_t p : shards.order()) holds[p] = true;
  return holds;
}

std::vector<Range> held_ranges(const ParameterLayout& layout,
                               const std::vector<bool>& holds) {
  std::vector<Range> held;
  for (std::size_t p = 0; p < holds.size(); ++p)
    if (holds[p])
      held.push_back(
          {layout.parameters()[p].offset, layout.parameters()[p].size});
  return held;
}

}  // namespace

ShardGroup::ShardGroup(const ShardGroupParts& parts)
    : comm_(parts.comm),
      layout_(parts.layout),
      params_(parts.params),
      is_wide_(parts.is_wide),
      shards_(ShardLayout::of(
          layout_, comm_.size(),
          {.bucket_elements = parts.options.exchange.bucket_elements,
           .hosts = comm_.hosts(),
           .groups = parts.groups,
           .part = parts.part})),
      fragments_(shards_.fragments(comm_.rank())),
      shard_layout_(shards_.layout_of_shard(layout_, comm_.rank())),
      holds_(held(layout_, shards_)),
      units_(held_ranges(layout_, holds_)),
      rule_(parts.make_rule(shard_layout_)) {
  if (rule_ == nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                "make_rule must return an update rule, got null");
  make_reduction(parts);
  make_masters(parts.options);
  fill_masters(parts.initial);
  if (rule_->needs_norms()) norm_plan_ = plan_norms();
}

// A group of one rank sends nothing and therefore has no residuals.
void ShardGroup::make_reduction(const ShardGroupParts& parts) {
  const WireOptions& wire = parts.options.wire;
  const ReductionSettings settings{
      comm_,       shards_,    units_,           parts.options,
      parts.scale, parts.pool, parts.batch_ranks};
  bits_up_ = wire.bits_up;
  if (comm_.size() > 1 && wire.bits_down != 0) {
    const MemoryScope scope(MemoryKind::kBuckets);
    replicas_ = std::make_unique<Replicas>(comm_, shards_, units_,
                                           wire.bits_down, params_, parts.pool);
  }
  if (comm_.size() == 1 || wire.bits_up == 0)
    gradients_ = std::make_unique<GradientShard>(settings);
  else
    gradients_ = std::make_unique<EncodedGradients>(settings);
}

void ShardGroup::make_masters(const ZeroOptions& options) {
  const DType masters = options.master_dtype;
  if (!rule_->takes(masters))
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("master_dtype: {} with these options takes no {}",
                            rule_->name(), to_string(masters)));
  has_masters_ = masters != options.dtype || replicas_ != nullptr;
  if (has_masters_) masters_ = Buffer(shard_layout_.size(), masters);
}

Range ShardGroup::own(std::size_t b) const {
  return shards_.buckets()[b].pieces[static_cast<std::size_t>(comm_.rank())];
}

std::size_t ShardGroup::position(std::size_t b) const {
  return shards_.buckets()[b].positions[static_cast<std::size_t>(comm_.rank())];
}

View ShardGroup::own_params(std::size_t b) const {
  // An empty piece has its bucket's dtype.
  const ShardBucket& bucket = shards_.buckets()[b];
  return params_.subview(bucket.range.offset, bucket.range.size)
      .subview(own(b).offset - bucket.range.offset, own(b).size);
}

// ---- updates

optim::UpdateArrays ShardGroup::arrays(std::size_t b, Range part,
                                       float grad_scale) {
  const std::size_t at = position(b) + part.offset;
  const View replica = own_params(b).subview(part.offset, part.size);
  optim::UpdateArrays arrays{
      .params = replica,
      .grads = gradients_->piece(b).subview(part.offset, part.size),
      .grad_scale = grad_scale};
  if (!has_masters_) return arrays;
  arrays.params = masters_.view().subview(at, part.size);
  if (replicas_ == nullptr) arrays.low_precision = replica;
  return arrays;
}

void ShardGroup::add_restored_residuals(double loss_scale) {
  if (restored_residuals_.empty() || has_added_residuals_) return;
  has_added_residuals_ = true;
  // The factor also fits experts, whose gradients are divided by more ranks
  // than own the experts.
  const auto factor = static_cast<float>(loss_scale);
  constexpr std::size_t kPart = 1024;
  std::array<float, kPart> scaled{};
  for (std::size_t b = 0; b < shards_.buckets().size(); ++b)
    for (std::size_t at = 0; at < own(b).size; at += kPart) {
      const std::size_t size = std::min(kPart, own(b).size - at);
      const auto part =
          restored_residuals_.as<float>().subspan(position(b) + at, size);
      for (std::size_t i = 0; i < size; ++i) scaled[i] = part[i] * factor;
      kernels::accumulate(gradients_->piece(b).subview(at, size),
                          std::span(scaled).first(size));
    }
}

bool ShardGroup::settle(bool is_applied) {
  if (std::exchange(has_added_residuals_, false) && is_applied)
    restored_residuals_ = Buffer();
  return gradients_->settle(is_applied);
}

void ShardGroup::update(const ShardStep& step, ThreadPool& pool,
                        optim::StepMeter& meter,
                        const optim::FinalRange& tell) {
  if (rule_->needs_norms()) measure(step.number, step.grad_scale, pool, meter);
  const std::size_t count = shards_.buckets().size();
  // Waits for pending exchanges even after an exception, because the caller may
  // free the parameters afterwards.
  struct UnderWay {
    std::vector<comm::Work> gathers{};
    ~UnderWay() {
      for (const comm::Work& work : gathers) comm::wait_ignoring_errors(work);
    }
  } under_way;
  std::size_t told = 0;
  const auto tell_next = [&] {
    if (tell) tell(shards_.buckets()[told].range);
    ++told;
  };
  // Sends each bucket's parameters while the next bucket is updated.
  for (std::size_t b = 0; b < count; ++b) {
    const Range whole{0, own(b).size};
    rule_->apply_part(step.number, {position(b), whole.size},
                      arrays(b, whole, step.grad_scale), pool);
    if (replicas_ != nullptr) {
      replicas_->send(b, masters_.view().subview(position(b), whole.size),
                      meter);
      while (told < replicas_->taken()) tell_next();
      continue;
    }
    while (told < under_way.gathers.size() && under_way.gathers[told].done()) {
      under_way.gathers[told].wait();  // throws the gather's error
      tell_next();
    }
    const ShardBucket& bucket = shards_.buckets()[b];
    under_way.gathers.push_back(comm_.queue_all_gather(
        own_params(b), params_.subview(bucket.range.offset, bucket.range.size),
        bucket.within));
  }
  if (replicas_ != nullptr) replicas_->finish(meter);
  while (told < count) {
    if (replicas_ == nullptr) meter.wait_for({&under_way.gathers[told], 1});
    tell_next();
  }
}

void ShardGroup::gather_parameters() {
  if (!has_named_masters()) return;
  for (std::size_t b = 0; b < shards_.buckets().size(); ++b) {
    const ShardBucket& bucket = shards_.buckets()[b];
    if (has_masters_ && !has_own_replicas_)
      kernels::convert(masters_.view().subview(position(b), own(b).size),
                       own_params(b));
    comm_
        .queue_all_gather(
            own_params(b),
            params_.subview(bucket.range.offset, bucket.range.size),
            bucket.within)
        .wait();
  }
}

}  // namespace thinwire::zero
