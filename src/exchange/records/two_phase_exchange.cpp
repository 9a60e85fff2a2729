// SPDX-License-Identifier: Apache-2.0
#include "exchange/records/two_phase_exchange.h"

#include <algorithm>
#include <utility>

#include "comm/wait_ignoring_errors.h"
#include "exchange/wait_meter.h"

namespace thinwire::exchange {

using comm::Work;

namespace {

std::size_t grains_in(std::size_t size) {
  return (size + kBlocksPerGrain - 1) / kBlocksPerGrain;
}

// Returns part i of `parts` about equal ones, which begin at whole grains.
Range part_of(Range range, std::size_t i, std::size_t parts) {
  const std::size_t grains = grains_in(range.size);
  const std::size_t begin = grains * i / parts * kBlocksPerGrain;
  const std::size_t end =
      std::min(range.size, grains * (i + 1) / parts * kBlocksPerGrain);
  return {range.offset + begin, end - begin};
}

Range blocks_of(const Bucket& bucket) {
  return {bucket.first_block(), bucket.end_block() - bucket.first_block()};
}

}  // namespace

TwoPhaseExchange::TwoPhaseExchange(comm::Communicator& comm,
                                   const comm::HostGroups* groups,
                                   ThreadPool& pool, const BlockLayout& layout,
                                   bool keeps_previous)
    : between_(groups == nullptr ? comm : *groups->between),
      inside_(groups == nullptr ? nullptr : groups->inside.get()),
      pool_(pool),
      layout_(layout),
      places_(comm, groups),
      records_(layout),
      keeps_previous_(keeps_previous),
      encoded_end_(layout.blocks().size()) {
  if (keeps_previous) previous_ = Records(layout);
  for (Buffer& slot : received_)
    slot = make_received(layout, places_.workers, places_.own);
}

void TwoPhaseExchange::run(RecordSteps steps) {
  if (keeps_previous_) std::swap(records_, previous_);
  begin(std::move(steps));
  for (std::size_t k = 0; k < layout_.buckets().size(); ++k) add(k);
  finish();
}

void TwoPhaseExchange::begin(RecordSteps steps) {
  abandon();
  has_begun_ = true;
  steps_ = std::move(steps);
  encoded_end_ = 0;
}

void TwoPhaseExchange::add(std::size_t bucket) {
  order_.push_back(bucket);
  to_servers_.emplace_back();
  from_servers_.emplace_back();
  take_turns(order_.size());
}

void TwoPhaseExchange::queue_rest() { take_turns(order_.size() + 2); }

void TwoPhaseExchange::finish() {
  take_turns(order_.size() + (inside_ == nullptr ? 4 : 5));
  abandon();
}

void TwoPhaseExchange::abandon() noexcept {
  for (auto* works : {&to_servers_, &from_servers_}) {
    for (const Work& work : *works) comm::wait_ignoring_errors(work);
    works->clear();
  }
  comm::wait_ignoring_errors(std::exchange(from_inside_, {}));
  turn_ = 0;
  order_.clear();
  steps_ = {};
  has_begun_ = false;
}

void TwoPhaseExchange::take_turns(std::size_t end) {
  while (turn_ < end) take_turn(turn_++);
}

// In turn k, bucket k is encoded, bucket k - 2 averaged and bucket k - 4
// delivered, all in one pass of the pool's threads, while buckets k - 1 and k -
// 3 are in flight. Collectives are queued in the same order on all ranks: to
// servers k, then from servers k - 2. In a hierarchical exchange results take
// one turn more: bucket k - 4 is exchanged inside the host while bucket k - 5
// is delivered.
void TwoPhaseExchange::take_turn(std::size_t k) {
  // It is null before the first and after the last; k may have wrapped below 0.
  const auto bucket = [&](std::size_t turn) {
    return turn < order_.size() ? &layout_.buckets()[order_[turn]] : nullptr;
  };
  const Turn turn{bucket(k), bucket(k - 2),
                  bucket(k - (inside_ == nullptr ? 4 : 5))};
  Buffer& slot = received_[k % 2];
  if (turn.averaged != nullptr) wait(to_servers_[k - 2]);
  if (inside_ != nullptr && turn.delivered != nullptr) wait(from_inside_);
  if (const Bucket* const back = bucket(k - 4); back != nullptr) {
    wait(from_servers_[k - 4]);
    if (inside_ != nullptr) from_inside_ = queue_inside(*back);
  }
  compute(turn, slot);
  if (turn.delivered != nullptr && steps_.delivered)
    steps_.delivered(blocks_of(*turn.delivered));
  if (turn.encoded != nullptr) {
    encoded_end_ = turn.encoded->end_block();
    if (steps_.encoded) steps_.encoded(places_.piece_of(*turn.encoded));
    to_servers_[k] = queue_to_servers(*turn.encoded, slot);
  }
  if (turn.averaged != nullptr) {
    if (steps_.averaged) steps_.averaged(places_.served_of(*turn.averaged));
    from_servers_[k - 2] = queue_from_servers(*turn.averaged);
  }
}

void TwoPhaseExchange::share(const std::function<void(Range)>& average) {
  if (keeps_previous_) std::swap(records_, previous_);
  encoded_end_ = layout_.blocks().size();
  std::vector<Work> last;
  for (const Bucket& bucket : layout_.buckets()) {
    for_parts(pool_, places_.served_of(bucket), average);
    last.push_back(queue_from_servers(bucket));
  }
  if (inside_ != nullptr)
    for (std::size_t k = 0; k < last.size(); ++k) {
      wait(last[k]);
      last[k] = queue_inside(layout_.buckets()[k]);
    }
  for (const Work& work : last) wait(work);
}

void TwoPhaseExchange::compute(const Turn& turn, const Buffer& slot) {
  const Range encoded =
      turn.encoded != nullptr ? places_.piece_of(*turn.encoded) : Range();
  const Range served =
      turn.averaged != nullptr ? places_.served_of(*turn.averaged) : Range();
  const Range results =
      turn.delivered != nullptr ? blocks_of(*turn.delivered) : Range();
  const std::size_t parts =
      std::min(static_cast<std::size_t>(pool_.num_threads()),
               grains_in(std::max({encoded.size, served.size, results.size})));
  pool_.for_each(parts, [&](std::size_t i) {
    if (const Range part = part_of(encoded, i, parts); part.size != 0)
      steps_.encode(part);
    if (const Range part = part_of(served, i, parts); part.size != 0)
      steps_.average(Received(layout_, *turn.averaged, places_.own,
                              slot.as<std::uint8_t>().data()),
                     part);
    if (const Range part = part_of(results, i, parts); part.size != 0)
      steps_.deliver(part);
  });
}

View TwoPhaseExchange::piece(const Bucket& bucket) {
  return records_.chunks(bucket, places_.first, places_.end());
}

Work TwoPhaseExchange::queue_to_servers(const Bucket& bucket, Buffer& slot) {
  return exchange::queue_to_servers(
      between_, piece(bucket),
      chunk_sizes(layout_, bucket, places_.first, places_.end()),
      places_.own - places_.first, slot);
}

Work TwoPhaseExchange::queue_from_servers(const Bucket& bucket) {
  return between_.queue_all_gather(
      records_.chunks(bucket, places_.own, places_.own + 1), piece(bucket),
      chunk_sizes(layout_, bucket, places_.first, places_.end()));
}

Work TwoPhaseExchange::queue_inside(const Bucket& bucket) {
  const std::size_t places = bucket.server_begin.size() - 1;
  std::vector<std::size_t> sizes;
  for (std::size_t p = 0; p < places; p += places_.workers)
    sizes.push_back(records_.chunks(bucket, p, p + places_.workers).size());
  return inside_->queue_all_gather(piece(bucket),
                                   records_.chunks(bucket, 0, places), sizes);
}

void TwoPhaseExchange::wait(const Work& work) {
  WaitMeter(waited_).wait_for(std::span(&work, 1));
}

}  // namespace thinwire::exchange
