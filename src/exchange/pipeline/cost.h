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

/// Messages of one rank in one run of a pipeline.
using Cost = comm::Cost;

/// A layout by numbers: how many blocks of which sizes each server has in each
/// bucket. Equal chunks and equal buckets are kept once, so the largest models
/// take little memory.
class LayoutCounts {
 public:
  /// Blocks of one size.
  struct Blocks {
    std::uint64_t elements = 0;
    std::uint64_t count = 0;

    auto operator<=>(const Blocks&) const = default;
  };
  /// Blocks of one server in a bucket, in the order of their sizes.
  using Chunk = std::vector<Blocks>;
  /// The number of each server's chunk.
  using Bucket = std::vector<std::uint32_t>;

  LayoutCounts() = default;
  explicit LayoutCounts(const BlockLayout& layout);

  /// Adds `count` buckets in which server s has pieces[s] elements, in blocks
  /// of kernels::kSumChunk elements; the last one may be shorter.
  void add(std::uint64_t count, std::span<const std::size_t> pieces);

  /// The distinct chunks, with their numbers.
  [[nodiscard]] const std::map<Chunk, std::uint32_t>& chunks() const noexcept {
    return chunks_;
  }
  /// The distinct buckets, with how often the layout has them.
  [[nodiscard]] const std::map<Bucket, std::uint64_t>& buckets()
      const noexcept {
    return buckets_;
  }
  /// Returns the bytes that each chunk's records have, by its number.
  [[nodiscard]] std::vector<std::size_t> chunk_bytes(const Codec& codec) const;

 private:
  [[nodiscard]] std::uint32_t number_of(Chunk&& chunk);

  std::map<Chunk, std::uint32_t> chunks_;
  std::map<Bucket, std::uint64_t> buckets_;
};

/// Returns the elements of each server's chunk of one bucket of one unit, as
/// BlockLayout divides it.
[[nodiscard]] std::vector<std::size_t> chunk_elements(std::size_t bucket,
                                                      std::size_t servers);

}  // namespace thinwire::exchange
