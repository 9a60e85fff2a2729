// SPDX-License-Identifier: Apache-2.0
#include "shard/shard_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/require.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::shard {

namespace {

std::vector<bool> held(const ParameterLayout& layout,
                       std::span<const std::size_t> groups) {
  std::vector<bool> holds;
  for (const Parameter& p : layout.parameters())
    holds.push_back(groups.empty() || std::find(groups.begin(), groups.end(),
                                                p.group) != groups.end());
  return holds;
}

}  // namespace

ShardGroup::ShardGroup(const ShardGroupParts& parts)
    : comm_(parts.comm),
      layout_(parts.layout),
      make_rule_(parts.make_rule),
      params_(parts.params),
      copies_(parts.copies),
      shards_(ShardLayout::of(
          layout_, comm_.size(),
          {.bucket_elements = parts.options.exchange.bucket_elements,
           .groups = parts.groups})),
      fragments_(shards_.fragments(comm_.rank())),
      shard_layout_(shards_.layout_of_shard(layout_, comm_.rank())),
      holds_(held(layout_, parts.groups)),
      gradients_(comm_, shards_,
                 {.dtype = parts.options.dtype,
                  .wire = parts.options.communication_dtype.value_or(
                      parts.options.dtype),
                  .accumulation = parts.options.accumulation_dtype,
                  .average = parts.options.average,
                  .overlap = parts.options.overlap,
                  .batch_ranks = parts.batch_ranks},
                 copies_),
      rule_(make_rule_(shard_layout_)) {
  if (rule_ == nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                "make_rule must return an update rule, got null");
  const ZeroOptions& options = parts.options;
  const DType masters = options.master_dtype;
  if (!rule_->takes(masters))
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("master_dtype: {} with these options takes no {}",
                            rule_->name(), to_string(masters)));
  has_masters_ = masters != options.dtype || copies_ != nullptr;
  has_mirror_ = masters != options.dtype && copies_ != nullptr;
  if (has_masters_) masters_ = Buffer(shard_layout_.size(), masters);
  if (has_mirror_) mirror_ = Buffer(shard_layout_.size(), options.dtype);
  read_masters(parts.initial);
  if (rule_->needs_norms()) norm_plan_ = plan_norms();
}

Range ShardGroup::own(std::size_t b) const {
  return shards_.buckets()[b].pieces[static_cast<std::size_t>(comm_.rank())];
}

std::size_t ShardGroup::position(std::size_t b) const {
  return shards_.buckets()[b].positions[static_cast<std::size_t>(comm_.rank())];
}

View ShardGroup::own_params(std::size_t b) const {
  return params_.subview(own(b).offset, own(b).size);
}

void ShardGroup::require_states() const {
  if (rule_ == nullptr)
    throw Error(ErrorCode::kFailedPrecondition,
                "states are offloaded: call reload_states() first");
}

optim::UpdateRule& ShardGroup::rule() const {
  require_states();
  return *rule_;
}

// ---- updates

optim::UpdateArrays ShardGroup::arrays(std::size_t b, Range part,
                                       float grad_scale) {
  const std::size_t at = position(b) + part.offset;
  const View replica = own_params(b).subview(part.offset, part.size);
  optim::UpdateArrays arrays{
      .params = replica,
      .grads = gradients_.piece(b).subview(part.offset, part.size),
      .grad_scale = grad_scale};
  if (!has_masters_) return arrays;
  arrays.params = masters_.view().subview(at, part.size);
  if (has_mirror_)
    arrays.low_precision = mirror_.view().subview(at, part.size);
  else if (copies_ == nullptr)
    arrays.low_precision = replica;
  return arrays;
}

void ShardGroup::update(std::int64_t step, double grad_scale, ThreadPool& pool,
                        optim::StepMeter& meter) {
  const auto scale = static_cast<float>(grad_scale);
  if (rule().needs_norms()) measure(step, scale, pool, meter);
  const std::size_t count = shards_.buckets().size();
  std::vector<CopyEngine::Ticket> copied(count);
  // Not even an exception leaves anything under way: parameters may go then.
  struct UnderWay {
    CopyEngine* engine;
    CopyEngine::Ticket last_copy = 0;
    std::vector<comm::Work> gathers{};
    ~UnderWay() {
      if (engine != nullptr) engine->wait(last_copy);
      for (const comm::Work& work : gathers) try {
          work.wait();
        } catch (const Error&) {
          // A lost peer, or seen before.
        }
    }
  } under_way{copies_};
  const auto gather = [&](std::size_t b) {
    if (copies_ != nullptr) copies_->wait(copied[b]);
    const ShardBucket& bucket = shards_.buckets()[b];
    under_way.gathers.push_back(comm_.queue_all_gather(
        own_params(b), params_.subview(bucket.range.offset, bucket.range.size),
        bucket.counts));
  };
  // What is copied back leaves while the next bucket is updated.
  for (std::size_t b = 0; b < count; ++b) {
    const Range whole{0, own(b).size};
    rule_->apply_part(step, {position(b), whole.size}, arrays(b, whole, scale),
                      pool);
    if (copies_ == nullptr) {
      gather(b);
      continue;
    }
    const Buffer& updated = has_mirror_ ? mirror_ : masters_;
    copied[b] = copies_->queue(updated.view().subview(position(b), whole.size),
                               own_params(b));
    under_way.last_copy = copied[b];
    if (b > 0) gather(b - 1);
  }
  if (copies_ != nullptr && count > 0) gather(count - 1);
  meter.waiting([&] {
    for (const comm::Work& work : under_way.gathers) work.wait();
  });
}

void ShardGroup::gather_from_masters() {
  if (!has_masters_) return;
  for (std::size_t b = 0; b < shards_.buckets().size(); ++b) {
    const ShardBucket& bucket = shards_.buckets()[b];
    kernels::convert(masters_.view().subview(position(b), own(b).size),
                     own_params(b));
    comm_.all_gather(own_params(b),
                     params_.subview(bucket.range.offset, bucket.range.size),
                     bucket.counts);
  }
}

}  // namespace thinwire::shard
