// SPDX-License-Identifier: Apache-2.0
#include "compress/two_phase_exchange.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace thinwire::compress {

using comm::Work;

namespace {

constexpr std::size_t kBlocksPerGrain = 16;

Range blocks_of(const Bucket& bucket) {
  return {bucket.first_block(), bucket.end_block() - bucket.first_block()};
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

// The order in which collectives are queued is the same on all ranks: to
// servers 0, to servers 1, from servers 0, to servers 2, from servers 1, ...
void TwoPhaseExchange::run(const RecordSteps& steps) {
  if (keeps_previous_) std::swap(records_, previous_);
  encoded_end_ = 0;
  const auto buckets = layout_.buckets();
  std::vector<Work> to_servers(buckets.size());
  std::vector<Work> from_servers(buckets.size());
  for (std::size_t k = 0; k < buckets.size() + 2; ++k) {
    if (k < buckets.size()) {
      encode(buckets[k], steps);
      to_servers[k] = queue_to_servers(buckets[k], received_[k % 2]);
    }
    if (k >= 1 && k - 1 < buckets.size()) {
      wait(to_servers[k - 1]);
      average(buckets[k - 1], received_[(k - 1) % 2], steps);
      from_servers[k - 1] = queue_from_servers(buckets[k - 1]);
    }
    if (k >= 2 && k - 2 < buckets.size()) {
      wait(from_servers[k - 2]);
      deliver(buckets[k - 2], steps);
    }
  }
}

void TwoPhaseExchange::encode(const Bucket& bucket, const RecordSteps& steps) {
  for_parts({bucket.first_scale, bucket.end_scale - bucket.first_scale},
            [&](Range scales) { steps.encode(bucket, scales); });
  encoded_end_ = bucket.end_block();
  if (steps.encoded) steps.encoded(blocks_of(bucket));
}

void TwoPhaseExchange::average(const Bucket& bucket, const Buffer& slot,
                               const RecordSteps& steps) {
  const Received from(layout_, bucket, rank_, slot.as<std::uint8_t>().data());
  const std::size_t first = bucket.server_begin[rank_];
  const Range served{first, bucket.server_begin[rank_ + 1] - first};
  for_parts(served, [&](Range blocks) { steps.average(from, blocks); });
  if (steps.averaged) steps.averaged(served);
}

void TwoPhaseExchange::deliver(const Bucket& bucket, const RecordSteps& steps) {
  for_parts(blocks_of(bucket), steps.deliver);
}

void TwoPhaseExchange::for_parts(Range range,
                                 const std::function<void(Range)>& body) {
  pool_.for_ranges(range.size, kBlocksPerGrain,
                   [&](std::size_t begin, std::size_t end) {
                     body({range.offset + begin, end - begin});
                   });
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
