// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exchange/records/records.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/zero/shard_layout.h"

namespace thinwire::zero {

/// Returns the blocks of an exchange between owners and all ranks. Blocks are
/// cells. Chunks are the pieces of these owners, in flat order.
[[nodiscard]] inline exchange::BlockLayout blocks_of(
    const ShardLayout& shards, std::span<const int> owners,
    std::span<const Range> units, int bits) {
  std::vector<std::vector<Range>> pieces;
  for (const ShardBucket& bucket : shards.buckets()) {
    auto& of_bucket = pieces.emplace_back();
    for (const int owner : owners)
      of_bucket.push_back(bucket.pieces[static_cast<std::size_t>(owner)]);
  }
  return exchange::BlockLayout::of_pieces(units, pieces, bits);
}

/// Returns the range of a bucket's elements that neighbouring owners have.
[[nodiscard]] inline Range part_of(const ShardBucket& bucket,
                                   std::span<const int> owners) {
  const Range& first = bucket.pieces[static_cast<std::size_t>(owners.front())];
  const Range& last = bucket.pieces[static_cast<std::size_t>(owners.back())];
  return {first.offset, last.end() - first.offset};
}

/// Calls body(block) for each block of a range, on the threads of the pool.
template <class Body>
void for_blocks(ThreadPool& pool, Range blocks, const Body& body) {
  exchange::for_parts(pool, blocks, [&](Range part) {
    for (std::size_t b = part.offset; b < part.end(); ++b) body(b);
  });
}

/// The way of one bucket's records through the ranks: from all of them to the
/// owners of their blocks, or from the owners to all. It moves bytes without
/// reading them. Block::server stands for the owner.
class RecordRoute {
 public:
  /// Both references must outlive it. `owners[s]` is the rank that server s
  /// stands for.
  RecordRoute(comm::Communicator& comm, const exchange::BlockLayout& layout,
              std::span<const int> owners);

  /// Returns the server that this rank is.
  [[nodiscard]] std::size_t own_server() const noexcept { return own_; }
  /// Returns the blocks of the bucket that this rank owns.
  [[nodiscard]] Range owned_of(const exchange::Bucket& bucket) const;

  /// Return memory for any bucket's records, and for the records that all ranks
  /// send to this one.
  [[nodiscard]] Buffer make_records() const;
  [[nodiscard]] Buffer make_received() const;
  /// Returns the record of a block of `bucket` in make_records().
  [[nodiscard]] std::uint8_t* record(Buffer& records,
                                     const exchange::Bucket& bucket,
                                     std::size_t block) const;

  /// Sends every owner the records of its blocks; it receives one rank's after
  /// the other's, as exchange::Received has them. The memory is that of the
  /// functions above, and servers must be the ranks in their order. Collective,
  /// queued.
  [[nodiscard]] comm::Work queue_to_owners(const exchange::Bucket& bucket,
                                           Buffer& records,
                                           Buffer& received) const;
  /// Sends the `records` of this rank's own blocks, and receives all.
  /// Collective, queued.
  [[nodiscard]] comm::Work queue_from_owners(const exchange::Bucket& bucket,
                                             Buffer& records) const;

 private:
  [[nodiscard]] View all_of(const exchange::Bucket& bucket,
                            Buffer& records) const;

  comm::Communicator& comm_;
  const exchange::BlockLayout& layout_;
  std::vector<int> owners_;
  std::size_t own_ = 0;  // the server that this rank is
};

}  // namespace thinwire::zero
