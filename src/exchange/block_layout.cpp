// SPDX-License-Identifier: Apache-2.0
#include "thinwire/exchange/block_layout.h"

#include <algorithm>

#include "core/require.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::exchange {

namespace {

constexpr std::size_t kMostElements = 1024;

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

BlockLayout::BlockLayout(std::span<const Range> units,
                         const BlockOptions& options)
    : world_size_(options.world_size) {
  require(options.world_size >= 1, "BlockOptions.world_size", ">= 1",
          options.world_size);
  require(options.bucket_elements >= 1, "BlockOptions.bucket_elements", ">= 1",
          options.bucket_elements);
  require(
      options.block_elements >= 1 && options.block_elements <= kMostElements,
      "BlockOptions.block_elements", "in [1, 1024]", options.block_elements);
  cut_into_blocks(units, options);
}

BlockLayout BlockLayout::of_pieces(std::span<const Range> units,
                                   std::span<const std::vector<Range>> pieces) {
  BlockLayout layout;
  if (!pieces.empty())
    layout.world_size_ = static_cast<int>(pieces.front().size());
  auto unit = units.begin();
  for (const std::vector<Range>& servers : pieces) {
    Bucket bucket{{layout.blocks_.size()}};
    for (const Range& piece : servers) {
      layout.add_cells({unit, units.end()}, piece,
                       static_cast<int>(bucket.server_begin.size()) - 1);
      while (unit != units.end() && unit->end() <= piece.end()) ++unit;
      bucket.server_begin.push_back(layout.blocks_.size());
    }
    layout.buckets_.push_back(std::move(bucket));
  }
  return layout;
}

BlockLayout BlockLayout::of_blocks(std::vector<std::vector<Block>>&& buckets,
                                   int world_size) {
  BlockLayout layout;
  layout.world_size_ = world_size;
  for (std::vector<Block>& given : buckets) {
    std::ranges::stable_sort(given, {}, &Block::server);
    Bucket bucket;
    for (int server = 0; server <= world_size; ++server)
      bucket.server_begin.push_back(
          layout.blocks_.size() +
          static_cast<std::size_t>(
              std::ranges::lower_bound(given, server, {}, &Block::server) -
              given.begin()));
    for (const Block& block : given) {
      layout.residual_size_ += block.residual.size;
      layout.blocks_.push_back(block);
    }
    layout.buckets_.push_back(std::move(bucket));
  }
  return layout;
}

// Adds the cells of `units`, the first of which may begin before the piece.
void BlockLayout::add_cells(std::span<const Range> units, Range piece,
                            int server) {
  for (const Range& unit : units) {
    if (unit.offset >= piece.end()) break;
    const std::size_t stop = std::min(unit.end(), piece.end());
    for (std::size_t begin = std::max(unit.offset, piece.offset);
         begin < stop;) {
      const std::size_t grid =
          (begin / kernels::kSumChunk + 1) * kernels::kSumChunk;
      const std::size_t size = std::min(stop, grid) - begin;
      blocks_.push_back({{begin, size}, {residual_size_, size}, server});
      residual_size_ += size;
      begin += size;
    }
  }
}

void BlockLayout::cut_into_blocks(std::span<const Range> units,
                                  const BlockOptions& options) {
  const std::size_t most = round_up(options.block_elements, 32);
  for (const Range& unit : units)
    for (std::size_t begin = 0; begin < unit.size; begin += most) {
      const std::size_t size = std::min(most, unit.size - begin);
      blocks_.push_back(
          {{unit.offset + begin, size}, {residual_size_, size}, 0});
      residual_size_ += size;
    }

  const auto world = static_cast<std::size_t>(world_size_);
  for (std::size_t first = 0; first < blocks_.size();) {
    // A bucket has as many blocks as fit, but at least one.
    std::size_t end = first;
    std::size_t elements = 0;
    while (end < blocks_.size() &&
           (end == first ||
            elements + blocks_[end].values.size <= options.bucket_elements))
      elements += blocks_[end++].values.size;

    Bucket bucket{{first}};
    std::size_t before = 0;
    for (std::size_t b = first; b < end; before += blocks_[b++].values.size) {
      // Server r's chunk begins with the first block at or after r/W of the
      // bucket.
      while (bucket.server_begin.size() < world &&
             before * world >= elements * bucket.server_begin.size())
        bucket.server_begin.push_back(b);
      blocks_[b].server = static_cast<int>(bucket.server_begin.size()) - 1;
    }
    bucket.server_begin.resize(world + 1, end);
    buckets_.push_back(std::move(bucket));
    first = end;
  }
}

}  // namespace thinwire::exchange
