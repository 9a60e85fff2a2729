// SPDX-License-Identifier: Apache-2.0
#include "zero/wire/gradients.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "comm/wait_ignoring_errors.h"
#include "core/set_to_zero.h"
#include "exchange/records.h"
#include "exchange/two_phase_exchange.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/quantize.h"
#include "zero/wire/blocks.h"

namespace thinwire::zero {

using exchange::Block;
using exchange::Bucket;

namespace {

// One that is encoded and one that is on its way.
constexpr std::size_t kSlots = 2;

std::vector<int> in_order(std::size_t ranks) {
  std::vector<int> all(ranks);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

LowBitGradients::LowBitGradients(comm::Communicator& comm,
                                 const ShardLayout& shards,
                                 std::span<const Range> units,
                                 const LowBitReduction& settings,
                                 const precision::LossScale& scale,
                                 ThreadPool& pool)
    : comm_(comm),
      shards_(shards),
      settings_(settings),
      scale_(scale),
      pool_(pool),
      groups_(comm.hosts().is_flat() ? comm::HostGroups{}
                                     : comm::split_by_host(comm)),
      host_(groups_.inside == nullptr
                ? nullptr
                : std::make_unique<HostMeans>(*groups_.inside, shards,
                                              comm.hosts(), settings.average)),
      blocks_(blocks_of(shards, peers(), units, settings.bits)),
      route_(groups_.between == nullptr ? comm : *groups_.between, blocks_,
             in_order(peers().size())),
      residuals_(blocks_.residual_size(), settings.residual_dtype),
      filling_(shards.buckets().size()) {
  if (settings.keeps)
    others_ = Buffer(residuals_.size(), settings.residual_dtype);
  {
    const MemoryScope scope(MemoryKind::kGradients);
    means_ = Buffer::of<float>(shards.shard_size(comm.rank()));
  }
  const MemoryScope scope(MemoryKind::kBuckets);
  for (std::size_t s = 0; s < std::min(kSlots, filling_.size()); ++s)
    slots_.push_back(
        {.records = route_.make_records(), .received = route_.make_received()});
}

LowBitGradients::~LowBitGradients() { abandon(); }

// The ranks with which this one exchanges records.
std::vector<int> LowBitGradients::peers() const {
  const auto owners = shards_.owners();
  if (host_ == nullptr) return {owners.begin(), owners.end()};
  const comm::Hosts& hosts = comm_.hosts();
  const auto own =
      owners.subspan(static_cast<std::size_t>(hosts.local_rank * hosts.size),
                     static_cast<std::size_t>(hosts.size));
  return {own.begin(), own.end()};
}

Range LowBitGradients::part(std::size_t b) const {
  return host_ != nullptr ? host_->own_part(b) : shards_.buckets()[b].range;
}

std::vector<Range> LowBitGradients::parts() const {
  std::vector<Range> all;
  for (std::size_t b = 0; b < shards_.buckets().size(); ++b)
    all.push_back(part(b));
  return all;
}

void LowBitGradients::abandon() noexcept {
  if (host_ != nullptr) host_->abandon();
  for (const std::size_t slot : sent_)
    comm::wait_ignoring_errors(slots_[slot].work);
  sent_.clear();
}

// A window that nobody has settled has failed.
void LowBitGradients::begin_window() {
  waiting_.clear();
  is_encoded_ = true;
  finish();
  settle(/*is_applied=*/false);
  for (Buffer& values : filling_)
    if (!values.empty()) free_.push_back(std::move(values));
  if (free_.size() > 1) free_.resize(1);
  sums_ = {};
  adds_up_ = false;
}

// Where backwards are added up, others_ are the residuals before this window;
// else those that this window leaves.
bool LowBitGradients::settle(bool is_applied) {
  const bool has_changed = std::exchange(has_changed_, false);
  if (!has_changed) return false;
  if (settings_.keeps) {
    if (is_applied != adds_up_) std::swap(residuals_, others_);
    return false;
  }
  if (!is_applied) set_to_zero(residuals_.view());
  return !is_applied;
}

void LowBitGradients::set_residuals(Buffer&& residuals) {
  if (residuals.empty())
    set_to_zero(residuals_.view());
  else
    residuals_ = std::move(residuals);
}

// ---- gradients that come

bool LowBitGradients::reduce(View sums, std::size_t b) {
  sums_ = sums;
  backward_ = {};
  if (settings_.agrees_first) {
    waiting_.push_back(b);
    return false;
  }
  const Range range = shards_.buckets()[b].range;
  take_whole(b, sums.subview(range.offset, range.size), {});
  return true;
}

void LowBitGradients::begin(exchange::Backward which, DType gradients) {
  // Those of the backward before are added to residuals.
  while (host_ != nullptr && !host_->is_empty()) take_mean();
  backward_ = which;
  if (which.is_first) {
    dtype_ = gradients;
    adds_up_ = !which.is_last;
    if (adds_up_ && settings_.keeps && !residuals_.empty())
      std::memcpy(others_.data(), residuals_.data(), residuals_.bytes());
  }
  is_encoded_ = which.is_last;
  // All that a window takes is there from its beginning.
  if ((!adds_up_ || host_ != nullptr) && !filling_.empty())
    free_.push_back(std::move(values_of(0)));
}

Buffer& LowBitGradients::values_of(std::size_t b) {
  Buffer& values = filling_[b];
  if (!values.empty()) return values;
  if (!free_.empty()) {
    values = std::move(free_.back());
    free_.pop_back();
    if (values.dtype() == dtype_) return values;
  }
  const MemoryScope scope(MemoryKind::kBuckets);
  std::size_t largest = 0;
  for (const ShardBucket& bucket : shards_.buckets())
    largest = std::max(largest, bucket.range.size);
  values = Buffer(largest, dtype_);
  return values;
}

View LowBitGradients::residuals_of(Buffer& all, Range elements,
                                   std::size_t b) const {
  if (elements.size == 0) return all.view().subview(0, 0);
  const Block& first = blocks_.blocks()[blocks_.buckets()[b].first_block()];
  return all.view().subview(
      first.residual.offset + (elements.offset - first.values.offset),
      elements.size);
}

void LowBitGradients::store(const exchange::GradientPart& part) {
  if (adds_up_ && host_ == nullptr) {
    has_changed_ = true;
    if (part.values.empty()) return;
    return kernels::add_scaled(
        residuals_of(residuals_, part.range, part.bucket), part.values,
        static_cast<float>(1 / scale_.value()));
  }
  const Range& bucket = shards_.buckets()[part.bucket].range;
  const View to =
      values_of(part.bucket)
          .view()
          .subview(part.range.offset - bucket.offset, part.range.size);
  if (part.values.empty())
    set_to_zero(to);
  else
    kernels::convert(part.values, to);
}

bool LowBitGradients::send(std::size_t b) {
  if (adds_up_ && host_ == nullptr) {
    if (backward_.is_last) encode_and_send(b, {});
    return backward_.is_last;
  }
  const ConstView values =
      filling_[b].view().subview(0, shards_.buckets()[b].range.size);
  take_whole(b, values, std::move(filling_[b]));
  return true;
}

// ---- inside a host

// `values` are in `kept`, or stay until the step.
void LowBitGradients::take_whole(std::size_t b, ConstView values,
                                 Buffer&& kept) {
  if (host_ == nullptr) {
    encode_and_send(b, values);
    if (!kept.empty()) free_.push_back(std::move(kept));
    return;
  }
  if (host_->is_full()) take_mean();
  host_->queue(b, values, std::move(kept));
  if (!settings_.overlap) take_mean();
}

void LowBitGradients::take_mean() {
  HostMeans::Mean mean = host_->wait();
  if (!mean.kept.empty()) free_.push_back(std::move(mean.kept));
  if (backward_.is_last) return encode_and_send(mean.bucket, mean.values);
  has_changed_ = true;
  kernels::add_scaled(residuals_of(residuals_, part(mean.bucket), mean.bucket),
                      mean.values, static_cast<float>(1 / scale_.value()));
}

// ---- out and in

LowBitGradients::Slot& LowBitGradients::take_slot() {
  if (sent_.size() == slots_.size()) finish_oldest();
  std::size_t next = 0;
  while (std::find(sent_.begin(), sent_.end(), next) != sent_.end()) ++next;
  sent_.push_back(next);
  return slots_[next];
}

void LowBitGradients::encode_and_send(std::size_t b, ConstView values) {
  has_changed_ = true;
  Slot& slot = take_slot();
  slot.bucket = b;
  encode(slot, b, values);
  slot.work =
      route_.queue_to_owners(blocks_.buckets()[b], slot.records, slot.received);
  if (!settings_.overlap) finish_oldest();
}

void LowBitGradients::encode(Slot& slot, std::size_t b, ConstView values) {
  const Bucket& bucket = blocks_.buckets()[b];
  const std::size_t begin = part(b).offset;
  const auto reciprocal = static_cast<float>(1 / scale_.value());
  Buffer& next = settings_.keeps && !adds_up_ ? others_ : residuals_;
  for_blocks(
      pool_, {bucket.first_block(), bucket.end_block() - bucket.first_block()},
      [&](std::size_t i) {
        const Block& block = blocks_.blocks()[i];
        std::uint8_t* const record = route_.record(slot.records, bucket, i);
        const Range& at = block.residual;
        exchange::set_scale(
            record,
            kernels::quantize_sum(
                {.values = values.empty()
                               ? values
                               : values.subview(block.values.offset - begin,
                                                block.values.size),
                 .factor = reciprocal,
                 .residual = residuals_.view().subview(at.offset, at.size),
                 .error = next.view().subview(at.offset, at.size)},
                settings_.bits, exchange::words_of(record)));
      });
}

void LowBitGradients::finish_oldest() {
  const Slot& slot = slots_[sent_.front()];
  slot.work.wait();
  decode(slot);
  sent_.pop_front();
}

void LowBitGradients::decode(const Slot& slot) {
  const Bucket& bucket = blocks_.buckets()[slot.bucket];
  const auto rank = static_cast<std::size_t>(comm_.rank());
  const exchange::Received received(blocks_, bucket, route_.own_server(),
                                    slot.received.as<std::uint8_t>().data());
  // A host's mean has its ranks' share of the batch.
  const double ranks = comm_.hosts().ranks_per_host;
  const auto inverse =
      static_cast<float>(settings_.average ? ranks / settings_.batch_ranks : 1);
  const View means = piece(slot.bucket);
  const std::size_t peers = bucket.server_begin.size() - 1;
  const std::size_t begin = shards_.buckets()[slot.bucket].pieces[rank].offset;
  for_blocks(pool_, route_.owned_of(bucket), [&](std::size_t i) {
    std::vector<kernels::Quantized> sent;
    for (std::size_t r = 0; r < peers; ++r) {
      const std::uint8_t* const record = received.record(r, i);
      sent.push_back({exchange::words_of(record), exchange::scale_of(record)});
    }
    const Range& values = blocks_.blocks()[i].values;
    kernels::quantized_average(
        sent, settings_.bits, inverse, nullptr,
        means.as<float>().data() + (values.offset - begin), values.size);
  });
}

View LowBitGradients::piece(std::size_t b) {
  const ShardBucket& bucket = shards_.buckets()[b];
  const auto rank = static_cast<std::size_t>(comm_.rank());
  return means_.view().subview(bucket.positions[rank], bucket.counts[rank]);
}

void LowBitGradients::withhold(Range nonfinite) {
  waiting_.clear();
  set_to_zero(means_.view());
  for (std::size_t b = 0; b < shards_.buckets().size(); ++b) {
    const Range own =
        shards_.buckets()[b].pieces[static_cast<std::size_t>(comm_.rank())];
    const std::size_t begin = std::max(own.offset, nonfinite.offset);
    const std::size_t end = std::min(own.end(), nonfinite.end());
    if (begin >= end) continue;
    const auto values =
        piece(b).subview(begin - own.offset, end - begin).as<float>();
    std::ranges::fill(values, std::numeric_limits<float>::quiet_NaN());
  }
}

void LowBitGradients::finish() {
  for (const std::size_t b : waiting_) {
    const Range range = shards_.buckets()[b].range;
    take_whole(b, sums_.subview(range.offset, range.size), {});
  }
  waiting_.clear();
  while (host_ != nullptr && !host_->is_empty()) take_mean();
  // No backward was known to be the last.
  if (!std::exchange(is_encoded_, true))
    for (std::size_t b = shards_.buckets().size(); b-- > 0;)
      encode_and_send(b, {});
  while (!sent_.empty()) finish_oldest();
}

}  // namespace thinwire::zero
