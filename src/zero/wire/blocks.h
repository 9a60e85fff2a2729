// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/records/records.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/zero/shard_layout.h"

namespace thinwire::zero {

/// Returns the blocks that travel between owners and all ranks. They are cells;
/// chunks are the pieces of these owners, in the order in which they lie.
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

/// Returns the range of the flat array that neighbouring owners have of a
/// bucket.
[[nodiscard]] inline Range part_of(const ShardBucket& bucket,
                                   std::span<const int> owners) {
  const Range& first = bucket.pieces[static_cast<std::size_t>(owners.front())];
  const Range& last = bucket.pieces[static_cast<std::size_t>(owners.back())];
  return {first.offset, last.end() - first.offset};
}

/// Calls body(block) for each of a range, shared out over the pool's threads.
template <class Body>
void for_blocks(ThreadPool& pool, Range blocks, const Body& body) {
  exchange::for_parts(pool, blocks, [&](Range part) {
    for (std::size_t b = part.offset; b < part.end(); ++b) body(b);
  });
}

}  // namespace thinwire::zero
