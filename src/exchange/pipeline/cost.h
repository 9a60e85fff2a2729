// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "comm/routes.h"
#include "exchange/codec/codec.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

/// Messages that one rank sends in one run of a pipeline.
using Cost = comm::Cost;

/// Numbers and sizes of each server's blocks in each bucket of a layout. Equal
/// chunks and equal buckets are stored once, so that the largest models need
/// little memory.
class LayoutCounts {
 public:
  /// A number of blocks of one size.
  struct Blocks {
    std::uint64_t elements = 0;
    std::uint64_t count = 0;

    auto operator<=>(const Blocks&) const = default;
  };
  /// Blocks of one server in a bucket, ordered by size.
  using Chunk = std::vector<Blocks>;
  /// Index of each server's chunk.
  using Bucket = std::vector<std::uint32_t>;

  LayoutCounts() = default;
  explicit LayoutCounts(const BlockLayout& layout);

  /// Adds `count` buckets in which server s has pieces[s] elements. Blocks have
  /// kernels::kSumChunk elements, except that the last one may be shorter.
  void add(std::uint64_t count, std::span<const std::size_t> pieces);

  /// Returns the distinct chunks and their indices.
  [[nodiscard]] const std::map<Chunk, std::uint32_t>& chunks() const noexcept {
    return chunks_;
  }
  /// Returns the distinct buckets and their number in the layout.
  [[nodiscard]] const std::map<Bucket, std::uint64_t>& buckets()
      const noexcept {
    return buckets_;
  }
  /// Returns the bytes of each chunk's records, by the chunk's index.
  [[nodiscard]] std::vector<std::size_t> chunk_bytes(const Codec& codec) const;

 private:
  [[nodiscard]] std::uint32_t number_of(Chunk&& chunk);

  std::map<Chunk, std::uint32_t> chunks_;
  std::map<Bucket, std::uint64_t> buckets_;
};

/// Returns the elements of each server's chunk of a bucket that has one unit,
/// divided as in BlockLayout.
[[nodiscard]] std::vector<std::size_t> chunk_elements(std::size_t bucket,
                                                      std::size_t servers);

}  // namespace thinwire::exchange
