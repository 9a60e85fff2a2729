// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

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
  constexpr std::size_t kGrain = 16;
  pool.for_each((blocks.size + kGrain - 1) / kGrain, [&](std::size_t grain) {
    const std::size_t begin = blocks.offset + grain * kGrain;
    const std::size_t end = std::min(begin + kGrain, blocks.end());
    for (std::size_t b = begin; b < end; ++b) body(b);
  });
}

}  // namespace thinwire::zero
