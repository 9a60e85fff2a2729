// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinwire/exchange/block_layout.h"
#include "thinwire/zero/shard_layout.h"

namespace thinwire::zero {

/// Returns the blocks of an exchange between owners and all ranks. Blocks are
/// cells, and Block::server is the owner's place in `owners`. Chunks are the
/// pieces of these owners, in flat order.
[[nodiscard]] inline exchange::BlockLayout blocks_of(
    const ShardLayout& shards, std::span<const int> owners,
    std::span<const Range> units) {
  std::vector<std::vector<Range>> pieces;
  for (const ShardBucket& bucket : shards.buckets()) {
    auto& of_bucket = pieces.emplace_back();
    for (const int owner : owners)
      of_bucket.push_back(bucket.pieces[static_cast<std::size_t>(owner)]);
  }
  return exchange::BlockLayout::of_pieces(units, pieces);
}

/// Returns the range of a bucket that adjacent owners have.
[[nodiscard]] inline Range part_of(const ShardBucket& bucket,
                                   std::span<const int> owners) {
  const Range& first = bucket.pieces[static_cast<std::size_t>(owners.front())];
  const Range& last = bucket.pieces[static_cast<std::size_t>(owners.back())];
  return {first.offset, last.end() - first.offset};
}

}  // namespace thinwire::zero
