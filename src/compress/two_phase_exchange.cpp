// SPDX-License-Identifier: Apache-2.0
#include "compress/two_phase_exchange.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace thinwire::compress {

using comm::Work;

namespace {

constexpr std::size_t kBlocksPerGrain = 16;

std::size_t grains_in(std::size_t size) {
  return (size + kBlocksPerGrain - 1) / kBlocksPerGrain;
}

// Part i of `parts` about equal ones, which begin at whole grains.
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

Range scales_of(const Bucket& bucket) {
  return {bucket.first_scale, bucket.end_scale - bucket.first_scale};
}

}  // namespace

TwoPhaseExchange::TwoPhaseExchange(comm::Communicator& comm, ThreadPool& pool,
                                   const BlockLayout& layout,
                                   bool keeps_previous)
    : comm_(comm),
      pool_(pool),
      layout_(layout),
      rank_(static_cast<std::size_t>(comm.rank())),
      records_(layout),
      keeps_previous_(keeps_previous),
      encoded_end_(layout.blocks().size()) {
  if (keeps_previous) previous_ = Records(layout);
  std::size_t most_received = 0;
  for (const Bucket& bucket : layout.buckets())
    most_received =
        std::max(most_received, static_cast<std::size_t>(comm.size()) *
                                    chunk_bytes(layout, bucket, rank_));
  for (Buffer& slot : received_) slot = Buffer::of<std::uint8_t>(most_received);
}

// In turn k, bucket k is encoded, bucket k - 2 averaged and bucket k - 4
// delivered, all in one go of the pool's threads, while buckets k - 1 and k - 3
// travel. The order in which collectives are queued is the same on all ranks:
// to servers k, then from servers k - 2.
void TwoPhaseExchange::run(const RecordSteps& steps) {
  if (keeps_previous_) std::swap(records_, previous_);
  encoded_end_ = 0;
  const auto buckets = layout_.buckets();
  // Null before the first and after the last; k may have wrapped below 0.
  const auto bucket = [&](std::size_t k) {
    return k < buckets.size() ? &buckets[k] : nullptr;
  };
  std::vector<Work> to_servers(buckets.size());
  std::vector<Work> from_servers(buckets.size());
  for (std::size_t k = 0; k < buckets.size() + 4; ++k) {
    const Turn turn{bucket(k), bucket(k - 2), bucket(k - 4)};
    Buffer& slot = received_[k % 2];
    if (turn.averaged != nullptr) wait(to_servers[k - 2]);
    if (turn.delivered != nullptr) wait(from_servers[k - 4]);
    compute(turn, slot, steps);
    if (turn.encoded != nullptr) {
      encoded_end_ = turn.encoded->end_block();
      if (steps.encoded) steps.encoded(blocks_of(*turn.encoded));
      to_servers[k] = queue_to_servers(*turn.encoded, slot);
    }
    if (turn.averaged != nullptr) {
      if (steps.averaged) steps.averaged(served_of(*turn.averaged));
      from_servers[k - 2] = queue_from_servers(*turn.averaged);
    }
  }
}

void TwoPhaseExchange::compute(const Turn& turn, const Buffer& slot,
                               const RecordSteps& steps) {
  const Range scales =
      turn.encoded != nullptr ? scales_of(*turn.encoded) : Range();
  const Range served =
      turn.averaged != nullptr ? served_of(*turn.averaged) : Range();
  const Range results =
      turn.delivered != nullptr ? blocks_of(*turn.delivered) : Range();
  const std::size_t parts =
      std::min(static_cast<std::size_t>(pool_.num_threads()),
               grains_in(std::max({scales.size, served.size, results.size})));
  pool_.for_each(parts, [&](std::size_t i) {
    if (const Range part = part_of(scales, i, parts); part.size != 0)
      steps.encode(*turn.encoded, part);
    if (const Range part = part_of(served, i, parts); part.size != 0)
      steps.average(Received(layout_, *turn.averaged, rank_,
                             slot.as<std::uint8_t>().data()),
                    part);
    if (const Range part = part_of(results, i, parts); part.size != 0)
      steps.deliver(part);
  });
}

Range TwoPhaseExchange::served_of(const Bucket& bucket) const {
  const std::size_t first = bucket.server_begin[rank_];
  return {first, bucket.server_begin[rank_ + 1] - first};
}

Work TwoPhaseExchange::queue_to_servers(const Bucket& bucket, Buffer& slot) {
  const std::vector<std::size_t> send = chunk_sizes(layout_, bucket);
  const std::vector<std::size_t> receive(send.size(), send[rank_]);
  return comm_.queue_all_to_all(
      records_.of(bucket), send,
      slot.view().subview(0, send.size() * send[rank_]), receive);
}

Work TwoPhaseExchange::queue_from_servers(const Bucket& bucket) {
  return comm_.queue_all_gather(records_.chunk(bucket, rank_),
                                records_.of(bucket),
                                chunk_sizes(layout_, bucket));
}

void TwoPhaseExchange::wait(const Work& work) {
  const auto begin = std::chrono::steady_clock::now();
  work.wait();
  waited_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
}

}  // namespace thinwire::compress
