// SPDX-License-Identifier: Apache-2.0
#include "exchange/pipeline/cost.h"

#include <algorithm>

#include "comm/routes.h"
#include "exchange/pipeline/pipeline.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::exchange {

namespace {

constexpr std::size_t kBlock = kernels::kSumChunk;

LayoutCounts::Chunk chunk_of(std::size_t elements) {
  LayoutCounts::Chunk chunk;
  if (const std::size_t rest = elements % kBlock; rest != 0)
    chunk.push_back({rest, 1});
  if (const std::size_t full = elements / kBlock; full != 0)
    chunk.push_back({kBlock, full});
  return chunk;
}

LayoutCounts::Chunk chunk_of(std::span<const Block> blocks) {
  std::map<std::uint64_t, std::uint64_t> sizes;
  for (const Block& block : blocks) ++sizes[block.values.size];
  LayoutCounts::Chunk chunk;
  for (const auto& [elements, count] : sizes)
    chunk.push_back({elements, count});
  return chunk;
}

// Returns the adjacent chunks of servers [first, end).
std::vector<Range> ranges_of(std::span<const std::size_t> chunk_bytes,
                             const LayoutCounts::Bucket& bucket,
                             std::size_t first, std::size_t end) {
  std::vector<std::size_t> sizes;
  for (std::size_t server = first; server < end; ++server)
    sizes.push_back(chunk_bytes[bucket[server]]);
  return comm::ranges_of(sizes);
}

// Returns the bytes of each piece, which contains the chunks of `workers`
// servers.
std::vector<std::size_t> piece_sizes(std::span<const std::size_t> chunk_bytes,
                                     const LayoutCounts::Bucket& bucket,
                                     std::size_t servers) {
  std::vector<std::size_t> sizes(bucket.size() / servers);
  for (std::size_t s = 0; s < bucket.size(); ++s)
    sizes[s / servers] += chunk_bytes[bucket[s]];
  return sizes;
}

}  // namespace

LayoutCounts::LayoutCounts(const BlockLayout& layout) {
  for (const exchange::Bucket& bucket : layout.buckets()) {
    Bucket chunks;
    for (std::size_t s = 0; s + 1 < bucket.server_begin.size(); ++s)
      chunks.push_back(number_of(chunk_of(layout.blocks().subspan(
          bucket.server_begin[s],
          bucket.server_begin[s + 1] - bucket.server_begin[s]))));
    ++buckets_[std::move(chunks)];
  }
}

void LayoutCounts::add(std::uint64_t count,
                       std::span<const std::size_t> pieces) {
  Bucket chunks;
  for (const std::size_t piece : pieces)
    chunks.push_back(number_of(chunk_of(piece)));
  buckets_[std::move(chunks)] += count;
}

std::uint32_t LayoutCounts::number_of(Chunk&& chunk) {
  const auto next = static_cast<std::uint32_t>(chunks_.size());
  return chunks_.try_emplace(std::move(chunk), next).first->second;
}

std::vector<std::size_t> LayoutCounts::chunk_bytes(const Codec& codec) const {
  std::vector<std::size_t> bytes(chunks_.size());
  for (const auto& [chunk, number] : chunks_)
    for (const Blocks& blocks : chunk)
      bytes[number] += blocks.count * codec.record_bytes(blocks.elements);
  return bytes;
}

// Each chunk begins with the first block at or after its server's share.
std::vector<std::size_t> chunk_elements(std::size_t bucket,
                                        std::size_t servers) {
  std::vector<std::size_t> pieces;
  std::size_t begin = 0;
  for (std::size_t s = 1; s <= servers; ++s) {
    // bucket * s / servers, rounded up, without a product that overflows
    const std::size_t share =
        bucket / servers * s + (bucket % servers * s + servers - 1) / servers;
    const std::size_t blocks = (share + kBlock - 1) / kBlock;
    const std::size_t end = std::min(blocks * kBlock, bucket);
    pieces.push_back(end - begin);
    begin = end;
  }
  return pieces;
}

Cost Pipeline::cost(const LayoutCounts& layout, const comm::RankRoutes& rank,
                    const Codecs& codecs, Direction way, bool has_groups) {
  const comm::Routes& between = has_groups ? rank.between : rank.whole;
  const std::size_t places = rank.rank_at_place.size();
  const std::size_t workers = has_groups ? rank.workers : places;
  const std::size_t first = has_groups ? rank.place / workers * workers : 0;
  const auto up = layout.chunk_bytes(codecs.up);
  const auto down = layout.chunk_bytes(codecs.down);
  Cost all;
  for (const auto& [bucket, count] : layout.buckets()) {
    Cost one;
    if (way != Direction::kDown)
      one += between.of_all_to_all(
          ranges_of(up, bucket, first, first + workers), 1);
    if (way != Direction::kUp) {
      auto pieces = ranges_of(down, bucket, first, first + workers);
      if (!has_groups) pieces = comm::by_rank(pieces, rank.rank_at_place);
      one += between.of_all_gather(pieces, 1);
      if (has_groups)
        one += rank.inside.of_all_gather(
            comm::ranges_of(piece_sizes(down, bucket, workers)), 1);
    }
    all.add(one, count);
  }
  return all;
}

}  // namespace thinwire::exchange
