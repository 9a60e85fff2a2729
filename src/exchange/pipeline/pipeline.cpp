// SPDX-License-Identifier: Apache-2.0
#include "exchange/pipeline/pipeline.h"

#include <algorithm>

#include "comm/wait_ignoring_errors.h"
#include "exchange/wait_meter.h"

namespace thinwire::exchange {

using comm::Work;

namespace {

/// Threads share a range of blocks in multiples of this number.
constexpr std::size_t kBlocksPerGrain = 16;

std::size_t grains_in(std::size_t size) {
  return (size + kBlocksPerGrain - 1) / kBlocksPerGrain;
}

// Returns part i of `parts` nearly equal parts, which begin at whole grains.
Range part_of(Range range, std::size_t i, std::size_t parts) {
  const std::size_t grains = grains_in(range.size);
  const std::size_t begin = grains * i / parts * kBlocksPerGrain;
  const std::size_t end =
      std::min(range.size, grains * (i + 1) / parts * kBlocksPerGrain);
  return {range.offset + begin, end - begin};
}

Places places_of(const Route& route) {
  Places places(route.comm, route.groups);
  if (!route.owners.empty())
    places.own = static_cast<std::size_t>(
        std::ranges::find(route.owners, route.comm.rank()) -
        route.owners.begin());
  return places;
}

// Allocates slots for `buckets` buckets of at most this many bytes.
void reserve(std::array<Buffer, 2>& slots, std::size_t buckets,
             std::size_t bytes) {
  for (std::size_t s = 0; s < std::min(slots.size(), buckets); ++s)
    if (slots[s].size() < bytes) slots[s] = Buffer::of<std::uint8_t>(bytes);
}

// Calls an observer, if set, with the records of some blocks.
template <class Observer>
void show(const Observer& observer, const BucketRecords& records,
          Range blocks) {
  if (!observer) return;
  for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
    observer(b, records.at(b));
}

std::size_t longest_bucket(const RecordMap& map) {
  std::size_t most = 0;
  for (const Bucket& bucket : map.layout().buckets())
    most = std::max(
        most, map.begin(bucket.end_block()) - map.begin(bucket.first_block()));
  return most;
}

}  // namespace

Pipeline::Pipeline(const Route& route, ThreadPool& pool,
                   const BlockLayout& layout, const Codecs& codecs,
                   const Options& options)
    : between_(route.groups == nullptr ? route.comm : *route.groups->between),
      inside_(route.groups == nullptr ? nullptr : route.groups->inside.get()),
      owners_(route.owners.begin(), route.owners.end()),
      pool_(pool),
      layout_(layout),
      options_(options),
      places_(places_of(route)),
      up_(std::make_shared<RecordMap>(layout, codecs.up)),
      down_(&codecs.up == &codecs.down
                ? up_
                : std::make_shared<RecordMap>(layout, codecs.down)),
      memory_(options.memory ? options.memory
                             : std::make_shared<PipelineMemory>()) {
  const std::size_t buckets = layout.buckets().size();
  const Direction way = options.direction;
  if (way == Direction::kBoth) {
    const std::size_t all = down_->begin(layout.blocks().size());
    results_ = Buffer::of<std::uint8_t>(all);
    if (options.keeps_previous) previous_ = Buffer::of<std::uint8_t>(all);
  }
  if (way == Direction::kDown)
    reserve(memory_->records, buckets, longest_bucket(*down_));
  else if (way == Direction::kUp || up_ != down_)
    reserve(memory_->records, buckets, longest_bucket(*up_));
  if (way == Direction::kDown) return;
  std::size_t most = 0;
  for (const Bucket& bucket : layout.buckets())
    most =
        std::max(most, up_->chunks(bucket, places_.own, places_.own + 1).size);
  reserve(memory_->received, buckets, places_.workers * most);
}

void Pipeline::begin(RunSteps steps, Direction way) {
  drop();
  has_begun_ = true;
  goes_up_ = way != Direction::kDown;
  goes_down_ = way != Direction::kUp;
  is_swapped_ = options_.keeps_previous && goes_up_;
  if (is_swapped_) std::swap(results_, previous_);
  steps_ = std::move(steps);
}

void Pipeline::ready(std::size_t bucket) {
  order_.push_back(bucket);
  up_works_.emplace_back();
  down_works_.emplace_back();
  take_turn(order_.size() - 1);
}

void Pipeline::take_empty_turns(std::size_t count) {
  for (; count > 0; --count) ready(kNone);
}

std::size_t Pipeline::turns_until_taken() const {
  return (goes_up_ ? kLag : 0) + (goes_down_ ? kLag : 0) +
         (inside_ != nullptr ? 1 : 0);
}

void Pipeline::launch(RunSteps steps) {
  begin(std::move(steps));
  is_launched_ = true;
  try {
    // The order must be complete before the first launch, because the thread of
    // the collectives reads it.
    for (std::size_t b = 0; b < layout_.buckets().size(); ++b)
      order_.push_back(b);
    for (std::size_t b = 0; b < order_.size(); ++b) launch_bucket(b);
  } catch (...) {
    drop();
    throw;
  }
}

// Queues all stages of one bucket. The slot of received records is free,
// because collectives of one communicator run one after the other. Collectives
// inside the host use another communicator.
void Pipeline::launch_bucket(std::size_t k) {
  compute(k, kNone, kNone);
  show(steps_.encoded, going_up(k), places_.piece_of(bucket(k)));
  up_works_.push_back(queue_up(k));
  launched_works_.push_back(between_.queue_call([this, k] {
    const Range served = places_.served_of(bucket(k));
    average(k, served);
    show(steps_.averaged, going_down(k), served);
  }));
  down_works_.push_back(queue_down(k));
  if (inside_ != nullptr) {
    launched_works_.push_back(
        inside_->queue_call([down = down_works_.back()] { down.wait(); }));
    launched_works_.push_back(queue_inside(k));
  }
  if (steps_.queued) steps_.queued(blocks_of(bucket(k)));
}

void Pipeline::take_launched() {
  for (std::size_t k = 0; k < order_.size(); ++k) {
    wait(inside_ == nullptr ? down_works_[k] : launched_works_[3 * k + 2]);
    compute(kNone, kNone, k);
  }
}

void Pipeline::take_with(
    std::function<void(std::size_t, const std::uint8_t*)> take,
    std::function<void(Range)> taken) {
  steps_.take = std::move(take);
  steps_.taken = std::move(taken);
  if (is_launched_) return;
  const std::size_t lag = turns_until_taken();
  for (std::size_t k = lag; k < order_.size(); ++k)
    compute(kNone, kNone, if_filled(k - lag));
}

void Pipeline::finish() {
  try {
    if (is_launched_)
      take_launched();
    else
      take_empty_turns(turns_until_taken());
  } catch (...) {
    drop();
    throw;
  }
  is_swapped_ = false;
  drop();
}

void Pipeline::run(RunSteps steps, Direction way) {
  begin(std::move(steps), way);
  try {
    for (std::size_t b = 0; b < layout_.buckets().size(); ++b) ready(b);
  } catch (...) {
    drop();
    throw;
  }
  finish();
}

void Pipeline::drop() noexcept {
  for (auto* works : {&up_works_, &down_works_, &launched_works_}) {
    for (const Work& work : *works) comm::wait_ignoring_errors(work);
    works->clear();
  }
  comm::wait_ignoring_errors(std::exchange(inside_work_, {}));
  if (std::exchange(is_swapped_, false)) std::swap(results_, previous_);
  order_.clear();
  steps_ = {};
  has_begun_ = is_launched_ = false;
}

void Pipeline::drop(std::size_t bucket) noexcept {
  const auto at = std::ranges::find(order_, bucket);
  if (at == order_.end()) return;
  const auto turn = static_cast<std::size_t>(at - order_.begin());
  for (const Work& work : {up_works_[turn], down_works_[turn], inside_work_})
    comm::wait_ignoring_errors(work);
  *at = kNone;
}

// Runs turn k, in which buckets k - 1 and k - 3 are in flight. One pass of the
// pool's threads encodes bucket k, averages bucket k - 2 and takes bucket k -
// 4. With only one direction, bucket k - 2 is averaged or taken. All ranks
// queue collectives in the same order: bucket k up, then bucket k - 2 down. In
// a hierarchical pipeline, results need one more turn: bucket k - 4 is
// exchanged inside the host while bucket k - 5 is taken.
void Pipeline::take_turn(std::size_t k) {
  // Differences below 0 wrap around to buckets that do not exist.
  const std::size_t encoded = if_filled(k);
  const std::size_t averaged = goes_up_ ? if_filled(k - kLag) : kNone;
  const std::size_t back =
      goes_down_ ? if_filled(k - (goes_up_ ? 2 * kLag : kLag)) : kNone;
  const std::size_t taken =
      goes_down_ ? if_filled(k - turns_until_taken()) : kNone;
  if (averaged != kNone) wait(up_works_[averaged]);
  if (inside_ != nullptr && taken != kNone) wait(inside_work_);
  if (back != kNone) {
    wait(down_works_[back]);
    if (inside_ != nullptr) inside_work_ = queue_inside(back);
  }
  if (options_.direction == Direction::kDown) {  // both share a slot
    compute(kNone, kNone, taken);
    compute(encoded, kNone, kNone);
  } else {
    compute(encoded, averaged, taken);
  }
  if (encoded != kNone) {
    const Bucket& own = bucket(encoded);
    show(steps_.encoded, first_way(encoded), encoded_of(own));
    if (goes_up_)
      up_works_[k] = queue_up(k);
    else
      down_works_[k] = queue_down(k);
  }
  if (averaged == kNone || !goes_down_) return;
  show(steps_.averaged, going_down(averaged),
       places_.served_of(bucket(averaged)));
  down_works_[averaged] = queue_down(averaged);
}

void Pipeline::compute(std::size_t encoded, std::size_t averaged,
                       std::size_t taken) {
  const auto range = [&](std::size_t turn, auto&& of) {
    return turn == kNone ? Range() : of(bucket(turn));
  };
  const Range own =
      range(encoded, [&](const Bucket& b) { return encoded_of(b); });
  const Range served =
      range(averaged, [&](const Bucket& b) { return places_.served_of(b); });
  const Range results =
      range(steps_.take ? taken : kNone, &Pipeline::blocks_of);
  const std::size_t parts =
      std::min(static_cast<std::size_t>(pool_.num_threads()),
               grains_in(std::max({own.size, served.size, results.size})));
  pool_.for_each(parts, [&](std::size_t i) {
    if (const Range part = part_of(own, i, parts); part.size != 0) {
      const BucketRecords to = first_way(encoded);
      for (std::size_t b = part.offset; b < part.end(); ++b)
        steps_.encode(b, to.at(b));
    }
    if (const Range part = part_of(served, i, parts); part.size != 0)
      average(averaged, part);
    if (const Range part = part_of(results, i, parts); part.size != 0) {
      const BucketRecords from = going_down(taken);
      for (std::size_t b = part.offset; b < part.end(); ++b)
        steps_.take(b, from.at(b));
    }
  });
  if (taken != kNone && steps_.taken) steps_.taken(blocks_of(bucket(taken)));
}

void Pipeline::average(std::size_t turn, Range blocks) {
  Received from(*up_, bucket(turn), places_.own, places_.workers,
                memory_->received[slot(turn)].as<std::uint8_t>().data());
  const BucketRecords to = going_down(turn);
  for (std::size_t b = blocks.offset; b < blocks.end(); ++b)
    steps_.average(b, from.records(b), to.at(b));
}

// ---- records and their ways

// Returns the records on their way up. If both ways share one codec, these
// records lie in the memory of the results, which has room for all blocks.
BucketRecords Pipeline::going_up(std::size_t turn) {
  if (options_.direction == Direction::kBoth && up_ == down_)
    return going_down(turn);
  return {*up_, bucket(turn),
          memory_->records[slot(turn)].as<std::uint8_t>().data()};
}

BucketRecords Pipeline::going_down(std::size_t turn) {
  std::uint8_t* const first =
      options_.direction == Direction::kBoth
          ? results_.as<std::uint8_t>().data() +
                down_->begin(bucket(turn).first_block())
          : memory_->records[slot(turn)].as<std::uint8_t>().data();
  return {*down_, bucket(turn), first};
}

Work Pipeline::queue_up(std::size_t turn) {
  const auto sizes =
      up_->chunk_sizes(bucket(turn), places_.first, places_.end());
  const std::size_t own = sizes[places_.own - places_.first];
  return between_.queue_all_to_all(
      going_up(turn).chunks(places_.first, places_.end()), sizes,
      memory_->received[slot(turn)].view().subview(0, sizes.size() * own),
      std::vector<std::size_t>(sizes.size(), own));
}

Work Pipeline::queue_down(std::size_t turn) {
  const BucketRecords records = going_down(turn);
  const View own = records.chunks(places_.own, places_.own + 1);
  const View all = records.chunks(places_.first, places_.end());
  if (owners_.empty())
    return between_.queue_all_gather(
        own, all,
        down_->chunk_sizes(bucket(turn), places_.first, places_.end()));
  std::vector<Range> pieces(owners_.size());
  const std::size_t begin = down_->begin(bucket(turn).first_block());
  for (std::size_t s = 0; s < owners_.size(); ++s) {
    Range chunk = down_->chunks(bucket(turn), s, s + 1);
    chunk.offset -= begin;
    pieces[static_cast<std::size_t>(owners_[s])] = chunk;
  }
  return between_.queue_all_gather(own, all, pieces);
}

Work Pipeline::queue_inside(std::size_t turn) {
  const BucketRecords records = going_down(turn);
  const std::size_t places = bucket(turn).server_begin.size() - 1;
  std::vector<std::size_t> sizes;
  for (std::size_t p = 0; p < places; p += places_.workers)
    sizes.push_back(down_->chunks(bucket(turn), p, p + places_.workers).size);
  return inside_->queue_all_gather(records.chunks(places_.first, places_.end()),
                                   records.chunks(0, places), sizes);
}

void Pipeline::wait(const Work& work) {
  WaitMeter(waited_).wait_for(std::span(&work, 1));
}

}  // namespace thinwire::exchange
