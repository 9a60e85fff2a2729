// SPDX-License-Identifier: Apache-2.0
#include "zero/gradient_shard.h"

#include <algorithm>
#include <utility>

#include "comm/wait_ignoring_errors.h"
#include "core/set_to_zero.h"
#include "optim/checks.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::zero {

GradientShard::GradientShard(const ReductionSettings& settings)
    : comm_(settings.comm),
      shards_(settings.shards),
      options_(settings.options),
      batch_ranks_(settings.batch_ranks),
      filling_(shards_.buckets().size()) {
  begin_window();
}

GradientShard::~GradientShard() { abandon(); }

void GradientShard::abandon() noexcept {
  for (const SlotPointer& slot : sent_) comm::wait_ignoring_errors(slot->work);
}

void GradientShard::begin_window() {
  finish();
  for (SlotPointer& slot : filling_)
    if (slot) free_.push_back(std::move(slot));
  while (slots_ > kSlots && !free_.empty()) {
    free_.pop_back();
    --slots_;
  }
  sums_ = {};
}

// ---- types

Range GradientShard::own(std::size_t b) const {
  return bucket(b).pieces[static_cast<std::size_t>(comm_.rank())];
}

// Returns the dtype that is sent. 16-bit values are added in fp32 and rounded
// once, for either dtype.
DType GradientShard::wire_of(DType gradients) const {
  return is_16_bit(gradients) || comm_.size() == 1
             ? gradients
             : options_.communication_dtype.value_or(options_.dtype);
}

// Returns the operation. A mean over more ranks than the communicator's becomes
// an unrounded sum, which is divided later.
comm::ReduceOp GradientShard::op(DType wire) const {
  const bool is_mean =
      options_.average && is_16_bit(wire) && !is_part_of_batch();
  return is_mean ? comm::ReduceOp::kMean : comm::ReduceOp::kSum;
}

DType GradientShard::reduced_dtype(DType wire) const {
  if (is_part_of_batch()) return DType::kFloat32;
  const bool is_widened =
      !is_single_ && options_.accumulation_dtype == DType::kFloat32;
  return is_widened ? DType::kFloat32 : wire;
}

double GradientShard::divisor(double loss_scale) const noexcept {
  const bool is_sum = !is_16_bit(wire_) || is_part_of_batch();
  return loss_scale * (options_.average && is_sum ? batch_ranks_ : 1);
}

View GradientShard::own_part(std::size_t b) {
  const auto rank = static_cast<std::size_t>(comm_.rank());
  return shard_.view().subview(bucket(b).positions[rank],
                               bucket(b).counts[rank]);
}

View GradientShard::piece(std::size_t b) {
  if (in_shard_) return own_part(b);
  // An empty piece has its bucket's dtype.
  const Range range = bucket(b).range;
  return sums_.subview(range.offset, range.size)
      .subview(own(b).offset - range.offset, own(b).size);
}

void GradientShard::make_shard(DType dtype) {
  const MemoryScope scope(MemoryKind::kGradients);
  in_shard_ = true;
  const std::size_t size = shards_.shard_size(comm_.rank());
  if (shard_.size() != size || shard_.dtype() != dtype)
    shard_ = Buffer(size, dtype);
}

// ---- memory that is reused

GradientShard::SlotPointer GradientShard::make_slot() {
  const MemoryScope scope(MemoryKind::kBuckets);
  std::size_t largest = 0;
  for (const ShardBucket& b : shards_.buckets())
    largest = std::max(largest, b.range.size);
  auto slot = std::make_unique<Slot>();
  slot->values = Buffer(largest, wire_);
  ++slots_;
  return slot;
}

GradientShard::SlotPointer GradientShard::take_slot() {
  while (free_.empty() && slots_ >= kSlots && !sent_.empty())
    finish_reduction();
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

// Waits for the oldest reduction.
void GradientShard::finish_reduction() {
  sent_.front()->work.wait();
  SlotPointer slot = std::move(sent_.front());
  sent_.pop_front();
  if (slot->adds)
    kernels::accumulate(own_part(slot->bucket), slot->result);
  else if (!in_shard_ && !slot->values.empty())
    kernels::convert(slot->result, piece(slot->bucket));
  if (!slot->values.empty()) free_.push_back(std::move(slot));
}

void GradientShard::finish() {
  while (!sent_.empty()) finish_reduction();
}

// ---- whole

bool GradientShard::reduce(std::size_t b, View sums) {
  sums_ = sums;
  const Range range = bucket(b).range;
  View values = sums.subview(range.offset, range.size);
  wire_ = wire_of(values.dtype());
  is_single_ = true;
  in_shard_ = false;
  if (is_part_of_batch() && is_16_bit(wire_)) make_shard(reduced_dtype(wire_));

  const Range mine = own(b);
  SlotPointer slot;
  if (wire_ != values.dtype()) {
    slot = take_slot();
    const View travelling = slot->values.view().subview(0, range.size);
    kernels::convert(values, travelling);
    values = travelling;
  } else {
    slot = std::make_unique<Slot>();  // replaces the slot in place
  }
  slot->bucket = b;
  slot->adds = false;
  slot->result = values.subview(mine.offset - range.offset, mine.size);
  if (in_shard_) slot->result = own_part(b);
  slot->work = comm_.queue_reduce_scatter(values, slot->result,
                                          bucket(b).within, op(wire_));
  sent_.push_back(std::move(slot));
  if (!options_.overlap) finish();
  return comm_.size() > 1;
}

View GradientShard::scratch(Slot& slot, std::size_t size) {
  const MemoryScope scope(MemoryKind::kBuckets);
  const DType dtype = reduced_dtype(wire_);
  if (slot.reduced.size() < size || slot.reduced.dtype() != dtype)
    slot.reduced = Buffer(size, dtype);
  return slot.reduced.view().subview(0, size);
}

// ---- one by one

void GradientShard::begin(exchange::Backward which, DType gradients) {
  backward_ = which;
  if (which.is_first) {
    wire_ = wire_of(gradients);
    is_single_ = which.is_last;
    const bool adds_in_fp32 =
        !is_single_ &&
        (is_part_of_batch() || options_.accumulation_dtype == DType::kFloat32);
    make_shard(adds_in_fp32 ? DType::kFloat32 : reduced_dtype(wire_));
  }
  // Allocates a window's memory before its first gradient arrives.
  while (!is_alone() && slots_ < std::min(kSlots, filling_.size()))
    free_.push_back(make_slot());
}

void GradientShard::store(const exchange::GradientPart& part) {
  const std::size_t at = part.range.offset - bucket(part.bucket).range.offset;
  const bool adds = is_alone() && !part.is_first;
  const View memory =
      is_alone() ? own_part(part.bucket) : slot_of(part.bucket).values.view();
  const View to = memory.subview(at, part.range.size);
  if (adds) {
    if (!part.values.empty()) kernels::accumulate(to, part.values);
  } else if (part.values.empty()) {
    set_to_zero(to);
  } else {
    kernels::convert(part.values, to);
  }
}

bool GradientShard::send(std::size_t b, View whole) {
  if (!whole.empty()) return reduce(b, whole);
  if (is_alone()) return false;
  SlotPointer slot = std::move(filling_[b]);
  const std::size_t mine = own(b).size;
  slot->adds = !backward_.is_first;
  slot->result = slot->adds ? scratch(*slot, mine) : own_part(b);
  slot->work = comm_.queue_reduce_scatter(
      slot->values.view().subview(0, bucket(b).range.size), slot->result,
      bucket(b).within, op(wire_));
  sent_.push_back(std::move(slot));
  if (!options_.overlap) finish();
  return comm_.size() > 1;
}

}  // namespace thinwire::zero
