// SPDX-License-Identifier: Apache-2.0
#include "shard/gradient_shard.h"

#include <algorithm>
#include <utility>

#include "core/set_to_zero.h"
#include "optim/checks.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::shard {

namespace {

// One that fills and one that is on its way.
constexpr std::size_t kSlots = 2;

std::vector<Range> ranges_of(const ShardLayout& shards) {
  std::vector<Range> ranges;
  for (const Bucket& bucket : shards.buckets()) ranges.push_back(bucket.range);
  return ranges;
}

Range intersection(const Range& a, const Range& b) {
  const std::size_t begin = std::max(a.offset, b.offset);
  return {begin, std::min(a.end(), b.end()) - begin};
}

}  // namespace

GradientShard::GradientShard(comm::Communicator& comm,
                             const ParameterLayout& layout,
                             const ShardLayout& shards,
                             const ReductionSettings& settings,
                             CopyEngine* copies)
    : comm_(comm),
      layout_(layout),
      shards_(shards),
      settings_(settings),
      copies_(copies),
      schedule_(layout, ranges_of(shards)),
      filling_(shards.buckets().size()) {
  begin_window();
}

GradientShard::~GradientShard() { abandon(); }

void GradientShard::abandon() noexcept {
  for (const SlotPointer& slot : sent_) try {
      slot->work.wait();
    } catch (const Error&) {
      // A lost peer: nobody writes there any more.
    }
  if (copies_ != nullptr) copies_->wait(last_copy_);
}

void GradientShard::begin_window() {
  drain();
  for (SlotPointer& slot : filling_)
    if (slot) free_.push_back(std::move(slot));
  while (slots_ > kSlots && !free_.empty()) {
    free_.pop_back();
    --slots_;
  }
  left_.assign(shards_.buckets().size(), false);
  sums_ = {};
  has_sent_ = false;
  late_ = {};
}

// ---- types

Range GradientShard::own(std::size_t b) const {
  return bucket(b).pieces[static_cast<std::size_t>(comm_.rank())];
}

// Values of 16 bits are added in fp32 and rounded once, whatever the wire.
DType GradientShard::wire_of(DType gradients) const {
  return optim::is_16_bit(gradients) || comm_.size() == 1 ? gradients
                                                          : settings_.wire;
}

bool GradientShard::is_part_of_batch() const {
  return settings_.batch_ranks != comm_.size();
}

// The mean over more ranks than these is formed later, of unrounded sums.
comm::ReduceOp GradientShard::op(DType wire) const {
  const bool is_mean =
      settings_.average && optim::is_16_bit(wire) && !is_part_of_batch();
  return is_mean ? comm::ReduceOp::kMean : comm::ReduceOp::kSum;
}

DType GradientShard::reduced_dtype(DType wire) const {
  if (is_part_of_batch()) return DType::kFloat32;
  const bool is_widened = !is_single_ && copies_ == nullptr &&
                          settings_.accumulation == DType::kFloat32;
  return is_widened ? DType::kFloat32 : wire;
}

double GradientShard::divisor() const noexcept {
  const bool is_sum = !optim::is_16_bit(wire_) || is_part_of_batch();
  return settings_.average && is_sum ? settings_.batch_ranks : 1;
}

View GradientShard::own_part(std::size_t b) {
  const auto rank = static_cast<std::size_t>(comm_.rank());
  return shard_.view().subview(bucket(b).positions[rank],
                               bucket(b).counts[rank]);
}

View GradientShard::piece(std::size_t b) {
  if (in_shard_) return own_part(b);
  const Range range = own(b);
  return sums_.subview(range.offset, range.size);
}

void GradientShard::make_shard(DType dtype) {
  const MemoryScope scope(MemoryKind::kGradients);
  in_shard_ = true;
  const std::size_t size = shards_.shard_size(comm_.rank());
  if (shard_.size() != size || shard_.dtype() != dtype)
    shard_ = Buffer(size, dtype);
}

// ---- memory that goes round

GradientShard::SlotPointer GradientShard::make_slot() {
  const MemoryScope scope(MemoryKind::kBuckets);
  std::size_t largest = 0;
  for (const Bucket& b : shards_.buckets())
    largest = std::max(largest, b.range.size);
  auto slot = std::make_unique<Slot>();
  slot->values = Buffer(largest, wire_);
  ++slots_;
  return slot;
}

GradientShard::SlotPointer GradientShard::take_slot() {
  while (free_.empty() && slots_ >= kSlots &&
         !(sent_.empty() && arriving_.empty()))
    arriving_.empty() ? arrive_oldest() : land_oldest();
  if (free_.empty()) {
    return make_slot();
  }
  SlotPointer slot = std::move(free_.back());
  free_.pop_back();
  const MemoryScope scope(MemoryKind::kBuckets);
  if (slot->values.dtype() != wire_)
    slot->values = Buffer(slot->values.size(), wire_);
  return slot;
}

GradientShard::Slot& GradientShard::slot_of(std::size_t b) {
  if (!filling_[b]) {
    filling_[b] = take_slot();
    filling_[b]->bucket = b;
  }
  return *filling_[b];
}

// The oldest reduction has ended: what it gave goes where it is to be.
void GradientShard::arrive_oldest() {
  sent_.front()->work.wait();
  SlotPointer slot = std::move(sent_.front());
  sent_.pop_front();
  if (copies_ != nullptr && slot->result.size() > 0) {
    View to = own_part(slot->bucket);
    // Copies do not convert: what is added up in fp32 has come in 16 bits.
    slot->lands = slot->adds || slot->result.dtype() != to.dtype();
    if (slot->lands) {
      const MemoryScope scope(MemoryKind::kBuckets);
      if (slot->host.size() < slot->result.size() ||
          slot->host.dtype() != slot->result.dtype())
        slot->host = Buffer(slot->result.size(), slot->result.dtype());
      to = slot->host.view().subview(0, slot->result.size());
    }
    slot->copied = last_copy_ = copies_->queue(slot->result, to);
  }
  arriving_.push_back(std::move(slot));
}

void GradientShard::land_oldest() {
  SlotPointer slot = std::move(arriving_.front());
  arriving_.pop_front();
  if (copies_ != nullptr) copies_->wait(slot->copied);
  const View result = slot->lands
                          ? slot->host.view().subview(0, slot->result.size())
                          : slot->result;
  if (slot->adds)
    kernels::accumulate(own_part(slot->bucket), result);
  else if (slot->lands)
    kernels::convert(result, own_part(slot->bucket));
  else if (!in_shard_ && !slot->values.empty())
    kernels::convert(result, piece(slot->bucket));
  slot->lands = false;
  if (!slot->values.empty()) free_.push_back(std::move(slot));
}

void GradientShard::drain() {
  while (!sent_.empty()) arrive_oldest();
  while (!arriving_.empty()) land_oldest();
}

// ---- whole

void GradientShard::reduce(View sums, std::size_t b) {
  sums_ = sums;
  wire_ = wire_of(sums.dtype());
  is_single_ = true;
  in_shard_ = false;
  if (copies_ != nullptr || (is_part_of_batch() && optim::is_16_bit(wire_)))
    make_shard(reduced_dtype(wire_));
  left_[b] = true;
  has_sent_ = comm_.size() > 1;

  const Range range = bucket(b).range;
  const Range mine = own(b);
  SlotPointer slot;
  View values = sums.subview(range.offset, range.size);
  if (wire_ != sums.dtype()) {
    slot = take_slot();
    const View travelling = slot->values.view().subview(0, range.size);
    kernels::convert(values, travelling);
    values = travelling;
  } else {
    slot = std::make_unique<Slot>();  // in place
  }
  slot->bucket = b;
  slot->adds = false;
  slot->result = values.subview(mine.offset - range.offset, mine.size);
  if (reduced_dtype(wire_) != wire_) {
    slot->result = copies_ == nullptr ? own_part(b) : scratch(*slot, mine.size);
  }
  slot->work = comm_.queue_reduce_scatter(values, slot->result,
                                          bucket(b).counts, op(wire_));
  sent_.push_back(std::move(slot));
  if (!settings_.overlap) drain();
}

View GradientShard::scratch(Slot& slot, std::size_t size) {
  const MemoryScope scope(MemoryKind::kBuckets);
  const DType dtype = reduced_dtype(wire_);
  if (slot.reduced.size() < size || slot.reduced.dtype() != dtype)
    slot.reduced = Buffer(size, dtype);
  return slot.reduced.view().subview(0, size);
}

void GradientShard::finish(View sums) {
  if (!sums.empty())
    for (std::size_t b = left_.size(); b-- > 0;)
      if (!left_[b]) reduce(sums, b);
  drain();
}

// ---- one by one

void GradientShard::begin(ZeroOptimizer::Backward which, DType gradients) {
  which_ = which;
  late_ = {};
  if (which.is_first) {
    wire_ = wire_of(gradients);
    is_single_ = which.is_last;
    const bool adds_in_fp32 =
        !is_single_ &&
        (is_part_of_batch() || settings_.accumulation == DType::kFloat32);
    make_shard(adds_in_fp32 ? DType::kFloat32 : reduced_dtype(wire_));
  }
  schedule_.begin();
  // All that a window takes is there from its beginning.
  while (!is_alone() && slots_ < std::min(kSlots, filling_.size()))
    free_.push_back(make_slot());
}

void GradientShard::collect(std::size_t parameter, ConstView gradient) {
  const Parameter& p = layout_.parameters()[parameter];
  const Range buckets = schedule_.buckets_of(parameter);
  if (buckets.size == 0) schedule_.mark_ready(parameter);
  for (std::size_t b = buckets.end(); b-- > buckets.offset;) {
    const Range part = intersection({p.offset, p.size}, bucket(b).range);
    const ConstView values =
        gradient.empty() ? gradient
                         : gradient.subview(part.offset - p.offset, part.size);
    const std::size_t at = part.offset - bucket(b).range.offset;
    if (is_alone()) {
      const View to = own_part(b).subview(at, part.size);
      if (which_.is_first)
        values.empty() ? set_to_zero(to) : kernels::convert(values, to);
      else if (!values.empty())
        kernels::accumulate(to, values);
    } else {
      const View to = slot_of(b).values.view().subview(at, part.size);
      values.empty() ? set_to_zero(to) : kernels::convert(values, to);
    }
    schedule_.mark_part_ready(parameter, b);
    while (const auto complete = schedule_.take_complete()) send(*complete);
  }
}

void GradientShard::end() {
  if (const auto held_up = schedule_.waiting_for())
    late_.parameter = static_cast<std::int64_t>(*held_up);
  for (std::size_t b = 0; b < schedule_.left(); ++b)
    late_.elements += bucket(b).range.size;
  for (std::size_t p = layout_.parameters().size(); p-- > 0;)
    if (!schedule_.is_ready(p)) collect(p, {});
}

void GradientShard::send(std::size_t b) {
  has_sent_ = comm_.size() > 1;
  if (is_alone()) return;
  SlotPointer slot = std::move(filling_[b]);
  const std::size_t mine = own(b).size;
  slot->adds = !which_.is_first;
  slot->result =
      slot->adds || copies_ != nullptr ? scratch(*slot, mine) : own_part(b);
  slot->work = comm_.queue_reduce_scatter(
      slot->values.view().subview(0, bucket(b).range.size), slot->result,
      bucket(b).counts, op(wire_));
  sent_.push_back(std::move(slot));
  if (!settings_.overlap) drain();
}

}  // namespace thinwire::shard
