// SPDX-License-Identifier: Apache-2.0
#include "zero/wire/gradients.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/set_to_zero.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/memory.h"
#include "zero/wire/blocks.h"

namespace thinwire::zero {

using exchange::Block;
using exchange::Direction;
using exchange::SentRecords;

namespace {

exchange::Pipeline make_pipeline(comm::Communicator& peers, ThreadPool& pool,
                                 const exchange::BlockLayout& blocks,
                                 const exchange::ValueCodec& codec) {
  const MemoryScope scope(MemoryKind::kBuckets);
  return {{peers}, pool, blocks, {codec, codec}, {.direction = Direction::kUp}};
}

}  // namespace

EncodedGradients::EncodedGradients(const ReductionSettings& settings,
                                   comm::Communicator& peers,
                                   std::span<const int> owners)
    : settings_(settings),
      rank_(static_cast<std::size_t>(settings.comm.rank())),
      blocks_(blocks_of(settings.shards, owners, settings.units)),
      codec_(exchange::codec_of(settings.options.wire.bits_up)),
      residuals_(
          blocks_, 0, owners.size(), settings.options.wire.residuals(),
          settings.options.wire.keeps_residuals(settings.options.dtype) &&
              !agrees_first(settings.options)),
      pipeline_(make_pipeline(peers, settings_.pool, blocks_, codec_)) {
  for (const ShardBucket& bucket : settings.shards.buckets())
    parts_.push_back(part_of(bucket, owners));
  for (std::size_t b = 0; b < parts_.size(); ++b)
    for (std::size_t i = blocks_.buckets()[b].first_block();
         i < blocks_.buckets()[b].end_block(); ++i)
      mean_at_.push_back(bucket(b).positions[rank_] +
                         blocks_.blocks()[i].values.offset -
                         bucket(b).pieces[rank_].offset);
  const MemoryScope scope(MemoryKind::kGradients);
  means_ = Buffer::of<float>(settings.shards.shard_size(settings.comm.rank()));
}

void EncodedGradients::begin(exchange::Backward which, DType /*gradients*/) {
  backward_ = which;
  if (!which.is_first || which.is_last) return;
  adds_up_ = true;
  residuals_.save_before();
}

void EncodedGradients::finish() {
  // The last backward was not announced as such.
  if (!std::exchange(backward_.is_last, true))
    for (std::size_t b = parts_.size(); b-- > 0;) encode_and_send(b, {});
  if (pipeline_.has_begun()) pipeline_.finish();
}

// A window that settle() has not ended has failed.
void EncodedGradients::begin_window() {
  backward_ = {};
  finish();
  settle(/*is_applied=*/false);
  adds_up_ = false;
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

void EncodedGradients::add(std::size_t b, Range elements, ConstView values) {
  has_changed_ = true;
  if (values.empty()) return;
  const Block& first = blocks_.blocks()[blocks_.buckets()[b].first_block()];
  const std::size_t at =
      first.residual.offset + (elements.offset - first.values.offset);
  kernels::add_scaled(residuals_.values().subview(at, elements.size), values,
                      reciprocal());
}

// ---- sending and receiving

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
  // A host's mean weighs as much as its ranks' share of the batch.
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
