// SPDX-License-Identifier: Apache-2.0
#include "zero/wire/gradients.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "comm/wait_ignoring_errors.h"
#include "core/set_to_zero.h"
#include "exchange/records/records.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::zero {

using exchange::Block;
using exchange::Bucket;

LowBitGradients::LowBitGradients(const ReductionSettings& settings,
                                 comm::Communicator& peers,
                                 std::span<const int> owners)
    : settings_(settings),
      rank_(static_cast<std::size_t>(settings.comm.rank())),
      blocks_(blocks_of(settings.shards, owners, settings.units,
                        settings.options.wire.bits_up)),
      route_(peers, blocks_, comm::ranks_by_place({.size = peers.size()})),
      keeps_(settings.options.wire.keeps_residuals(settings.options.dtype) &&
             !agrees_first(settings.options)),
      residuals_(blocks_.residual_size(), settings.options.wire.residuals()) {
  for (const ShardBucket& bucket : settings.shards.buckets())
    parts_.push_back(part_of(bucket, owners));
  if (keeps_) others_ = Buffer(residuals_.size(), residuals_.dtype());
  {
    const MemoryScope scope(MemoryKind::kGradients);
    means_ =
        Buffer::of<float>(settings.shards.shard_size(settings.comm.rank()));
  }
  const MemoryScope scope(MemoryKind::kBuckets);
  for (std::size_t s = 0; s < std::min(kSlots, parts_.size()); ++s)
    slots_.push_back(
        {.records = route_.make_records(), .received = route_.make_received()});
}

void LowBitGradients::begin(exchange::Backward which, DType /*gradients*/) {
  backward_ = which;
  if (!which.is_first || which.is_last) return;
  adds_up_ = true;
  if (keeps_) kernels::convert(residuals(), others_.view());
}

void LowBitGradients::finish() {
  // The last backward was not announced as such.
  if (!std::exchange(backward_.is_last, true))
    for (std::size_t b = parts_.size(); b-- > 0;) encode_and_send(b, {});
  while (count_ > 0) finish_oldest();
}

void LowBitGradients::abandon() noexcept {
  for (; count_ > 0; --count_)
    comm::wait_ignoring_errors(slots_[first_++ % slots_.size()].work);
}

// A window that settle() has not ended has failed.
void LowBitGradients::begin_window() {
  backward_ = {};
  finish();
  settle(/*is_applied=*/false);
  adds_up_ = false;
}

// If backwards are accumulated, others_ has the residuals before this window.
// Otherwise it has those after it.
bool LowBitGradients::settle(bool is_applied) {
  if (!std::exchange(has_changed_, false)) return false;
  if (keeps_ && is_applied != adds_up_) std::swap(residuals_, others_);
  const bool clears = !keeps_ && !is_applied;
  if (clears) set_to_zero(residuals_.view());
  return clears;
}

void LowBitGradients::set_residuals(Buffer&& residuals) {
  if (residuals.empty()) return set_to_zero(residuals_.view());
  residuals_ = std::move(residuals);
}

void LowBitGradients::add(std::size_t b, Range elements, ConstView values) {
  has_changed_ = true;
  if (values.empty()) return;
  const Block& first = blocks_.blocks()[blocks_.buckets()[b].first_block()];
  const std::size_t at =
      first.residual.offset + (elements.offset - first.values.offset);
  kernels::add_scaled(residuals_.view().subview(at, elements.size), values,
                      reciprocal());
}

// ---- sending and receiving

void LowBitGradients::encode_and_send(std::size_t b, ConstView values) {
  has_changed_ = true;
  if (count_ == slots_.size()) finish_oldest();
  Slot& slot = slots_[(first_ + count_++) % slots_.size()];
  slot.bucket = b;
  encode(slot, b, values);
  slot.work =
      route_.queue_to_owners(blocks_.buckets()[b], slot.records, slot.received);
  if (!settings_.options.overlap) finish_oldest();
}

void LowBitGradients::encode(Slot& slot, std::size_t b, ConstView values) {
  const Bucket& bucket = blocks_.buckets()[b];
  const std::size_t first = bucket.first_block();
  const View before = residuals_.view();
  const View after = keeps_ && !adds_up_ ? others_.view() : before;
  for_blocks(
      settings_.pool, {first, bucket.end_block() - first}, [&](std::size_t i) {
        const Range of = blocks_.blocks()[i].values;
        const Range at = blocks_.blocks()[i].residual;
        const kernels::QuantizedSum sum{
            .values =
                values.empty()
                    ? values
                    : values.subview(of.offset - parts_[b].offset, of.size),
            .factor = reciprocal(),
            .residual = before.subview(at.offset, at.size),
            .error = after.subview(at.offset, at.size)};
        exchange::write_quantized(route_.record(slot.records, bucket, i), sum,
                                  settings_.options.wire.bits_up);
      });
}

void LowBitGradients::finish_oldest() {
  const Slot& slot = slots_[first_ % slots_.size()];
  slot.work.wait();
  decode(slot);
  ++first_;
  --count_;
}

void LowBitGradients::decode(const Slot& slot) {
  const Bucket& bucket = blocks_.buckets()[slot.bucket];
  const exchange::Received received(blocks_, bucket, route_.own_server(),
                                    slot.received.as<std::uint8_t>().data());
  // A host's mean weighs as much as its ranks' share of the batch.
  const double ranks = settings_.comm.hosts().ranks_per_host;
  const auto inverse = static_cast<float>(
      settings_.options.average ? ranks / settings_.batch_ranks : 1);
  const View means = piece(slot.bucket);
  const std::size_t peers = bucket.server_begin.size() - 1;
  const std::size_t begin = this->bucket(slot.bucket).pieces[rank_].offset;
  for_blocks(settings_.pool, route_.owned_of(bucket), [&](std::size_t i) {
    const Range& values = blocks_.blocks()[i].values;
    exchange::QuantizedMean(received, peers, settings_.options.wire.bits_up,
                            inverse)
        .write(i,
               means.as<float>().subspan(values.offset - begin, values.size));
  });
}

View LowBitGradients::piece(std::size_t b) {
  return means_.view().subview(bucket(b).positions[rank_],
                               bucket(b).counts[rank_]);
}

void LowBitGradients::withhold(std::size_t b, Range nonfinite) {
  set_to_zero(piece(b));
  const Range own = bucket(b).pieces[rank_];
  const std::size_t begin = std::max(own.offset, nonfinite.offset);
  const std::size_t end = std::min(own.end(), nonfinite.end());
  if (begin >= end) return;
  const View marked = piece(b).subview(begin - own.offset, end - begin);
  std::ranges::fill(marked.as<float>(),
                    std::numeric_limits<float>::quiet_NaN());
}

}  // namespace thinwire::zero
