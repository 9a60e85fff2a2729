// SPDX-License-Identifier: Apache-2.0
#include "zero/wire/gradients.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "comm/wait_ignoring_errors.h"
#include "core/set_to_zero.h"
#include "thinwire/core/memory.h"
#include "zero/wire/blocks.h"

namespace thinwire::zero {

using exchange::Block;
using exchange::Direction;
using exchange::SentRecords;

namespace {

std::optional<comm::HostGroups> groups_of(comm::Communicator& comm) {
  if (comm.hosts().is_flat()) return std::nullopt;
  return comm::split_by_host(comm);
}

exchange::Pipeline make_pipeline(comm::Communicator& peers, ThreadPool& pool,
                                 const exchange::BlockLayout& blocks,
                                 const exchange::ValueCodec& codec) {
  const MemoryScope scope(MemoryKind::kBuckets);
  return {{peers}, pool, blocks, {codec, codec}, {.direction = Direction::kUp}};
}

}  // namespace

EncodedGradients::EncodedGradients(const ReductionSettings& settings)
    : settings_(settings),
      groups_(groups_of(settings.comm)),
      rank_(static_cast<std::size_t>(settings.comm.rank())),
      blocks_(blocks_of(settings.shards,
                        owners_of(settings.comm.hosts().local_rank),
                        settings.units)),
      codec_(exchange::codec_of(settings.options.wire.bits_up)),
      residuals_(
          blocks_, 0, static_cast<std::size_t>(blocks_.world_size()),
          settings.options.wire.residuals(),
          settings.options.wire.keeps_residuals(settings.options.dtype) &&
              !agrees_first(settings.options)),
      pipeline_(make_pipeline(groups_ ? *groups_->between : settings.comm,
                              settings_.pool, blocks_, codec_)) {
  std::size_t most = 0;
  const int own = static_cast<int>(pipeline_.places().own);
  for (std::size_t b = 0; b < blocks_.buckets().size(); ++b) {
    parts_.push_back(
        part_of(bucket(b), owners_of(settings.comm.hosts().local_rank)));
    most = std::max(most, parts_.back().size);
    for (std::size_t i = blocks_.buckets()[b].first_block();
         i < blocks_.buckets()[b].end_block(); ++i)
      mean_at_.push_back(blocks_.blocks()[i].server == own
                             ? bucket(b).positions[rank_] +
                                   blocks_.blocks()[i].values.offset -
                                   bucket(b).pieces[rank_].offset
                             : 0);
  }
  if (settings.options.stage == 2) filling_.emplace(settings.shards);
  if (groups_) {
    const MemoryScope scope(MemoryKind::kBuckets);
    for (HostMean& slot : host_means_) slot.mean = Buffer::of<float>(most);
  }
  const MemoryScope scope(MemoryKind::kGradients);
  means_ = Buffer::of<float>(settings.shards.shard_size(settings.comm.rank()));
}

std::span<const int> EncodedGradients::owners_of(int local_rank) const {
  const std::span<const int> all = settings_.shards.owners();
  if (!groups_) return all;
  const auto hosts = static_cast<std::size_t>(settings_.comm.hosts().size);
  return all.subspan(static_cast<std::size_t>(local_rank) * hosts, hosts);
}

// ---- the window

void EncodedGradients::begin(exchange::Backward which, DType gradients) {
  while (count_ > 0) take_oldest_mean();  // means of the previous backward
  backward_ = which;
  if (which.is_first && !which.is_last) {
    adds_up_ = true;
    residuals_.save_before();
  }
  if (groups_ || !adds_up_) filling_->begin(gradients);
}

void EncodedGradients::store(const exchange::GradientPart& part) {
  if (groups_ || !adds_up_)
    filling_->store(part);
  else
    add(part.bucket, part.range, part.values);
}

bool EncodedGradients::send(std::size_t b, View whole) {
  ConstView values;
  if (!filling_)
    values = whole.subview(bucket(b).range.offset, bucket(b).range.size);
  else if (groups_ || !adds_up_)
    values = filling_->values(b);
  if (groups_) {
    form_mean(b, values, filling_ ? filling_->take(b) : Buffer());
    return true;
  }
  if (!backward_.is_last) return false;
  encode_and_send(b, values);
  if (filling_) filling_->give_back(filling_->take(b));
  return true;
}

void EncodedGradients::finish() {
  while (count_ > 0) take_oldest_mean();
  // The caller did not announce that this backward was the last.
  if (!std::exchange(backward_.is_last, true))
    for (std::size_t b = parts_.size(); b-- > 0;) encode_and_send(b, {});
  if (pipeline_.has_begun()) pipeline_.finish();
}

void EncodedGradients::abandon() noexcept {
  for (; count_ > 0; --count_)
    comm::wait_ignoring_errors(host_means_[first_++ % kSlots].work);
  pipeline_.drop();
}

// A window that settle() has not ended has failed.
void EncodedGradients::begin_window() {
  backward_ = {};
  finish();
  settle(/*is_applied=*/false);
  adds_up_ = false;
  if (filling_) filling_->clear();
}

bool EncodedGradients::settle(bool is_applied) {
  if (!std::exchange(has_changed_, false)) {
    residuals_.forget_before();
    return false;
  }
  if (!is_applied) return residuals_.drop();
  residuals_.accept();
  return false;
}

void EncodedGradients::set_residuals(Buffer&& residuals) {
  if (residuals.empty()) return residuals_.clear();
  residuals_.set(std::move(residuals));
}

// ---- means inside the host

void EncodedGradients::form_mean(std::size_t b, ConstView values,
                                 Buffer&& memory) {
  if (count_ == kSlots) take_oldest_mean();
  HostMean& slot = host_means_[(first_ + count_++) % kSlots];
  slot.bucket = b;
  slot.memory = std::move(memory);
  std::vector<std::size_t> counts;
  for (int l = 0; l < settings_.comm.hosts().ranks_per_host; ++l)
    counts.push_back(part_of(bucket(b), owners_of(l)).size);
  slot.work = groups_->inside->queue_reduce_scatter(
      values, slot.mean.view().subview(0, parts_[b].size), counts,
      settings_.options.average ? comm::ReduceOp::kMean : comm::ReduceOp::kSum);
  if (!settings_.options.overlap) take_oldest_mean();
}

void EncodedGradients::take_oldest_mean() {
  HostMean& slot = host_means_[first_ % kSlots];
  slot.work.wait();
  ++first_;
  --count_;
  if (filling_) filling_->give_back(std::move(slot.memory));
  const Range part = parts_[slot.bucket];
  const ConstView mean = slot.mean.view().subview(0, part.size);
  if (backward_.is_last)
    encode_and_send(slot.bucket, mean);
  else
    add(slot.bucket, part, mean);
}

// ---- sending and receiving

// Adds values to the residuals of a bucket's elements. Skips values that are
// all 0.
void EncodedGradients::add(std::size_t b, Range elements, ConstView values) {
  has_changed_ = true;
  if (values.empty()) return;
  const Block& first = blocks_.blocks()[blocks_.buckets()[b].first_block()];
  const std::size_t at =
      first.residual.offset + (elements.offset - first.values.offset);
  kernels::add_scaled(residuals_.values().subview(at, elements.size), values,
                      reciprocal());
}

void EncodedGradients::encode_and_send(std::size_t b, ConstView values) {
  has_changed_ = true;
  values_ = values;
  values_begin_ = parts_[b].offset;
  if (!pipeline_.has_begun()) pipeline_.begin(steps());
  pipeline_.ready(b);
  if (!settings_.options.overlap) pipeline_.queue_rest();
}

exchange::RunSteps EncodedGradients::steps() {
  const auto encode = [this](std::size_t i, std::uint8_t* record) {
    const Range& of = blocks_.blocks()[i].values;
    kernels::QuantizedSum sum = residuals_.sum(i);
    if (!values_.empty())
      sum.values = values_.subview(of.offset - values_begin_, of.size);
    sum.factor = reciprocal();
    codec_.encode(sum, record);
  };
  // Weights a host's mean by its ranks' share of the batch.
  const double ranks = settings_.comm.hosts().ranks_per_host;
  const auto inverse = static_cast<float>(
      settings_.options.average ? ranks / settings_.batch_ranks : 1);
  const auto average = [this, inverse](std::size_t i, SentRecords sent,
                                       std::uint8_t*) {
    codec_.average(sent, inverse,
                   means_.as<float>().subspan(mean_at_[i],
                                              blocks_.blocks()[i].values.size));
  };
  return {.encode = encode, .average = average};
}

View EncodedGradients::piece(std::size_t b) {
  return means_.view().subview(bucket(b).positions[rank_],
                               bucket(b).counts[rank_]);
}

void EncodedGradients::withhold(std::size_t b, Range nonfinite) {
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
