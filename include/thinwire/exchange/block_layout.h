// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinwire/core/parameter_layout.h"

namespace thinwire::exchange {

/// Elements with one scale, the smallest unit that is sent.
struct Block {
  Range values;    ///< Elements of the caller's flat array.
  Range residual;  ///< Elements of the residual, the same number.
  int server = 0;  ///< Server that averages the block; if flat, a rank.
};

/// Blocks that are sent together, in one all-to-all and one all-gather.
struct Bucket {
  /// Server r averages blocks [server_begin[r], server_begin[r + 1]).
  std::vector<std::size_t> server_begin;

  [[nodiscard]] std::size_t first_block() const { return server_begin.front(); }
  [[nodiscard]] std::size_t end_block() const { return server_begin.back(); }
};

struct BlockOptions {
  int world_size = 1;                                  ///< >= 1.
  std::size_t bucket_elements = std::size_t{1} << 20;  ///< >= 1.
  /// Largest number of elements per scale, in [1, 1024], rounded up to a
  /// multiple of 32.
  std::size_t block_elements = 1024;
};

/// Division of flat ranges ("units", which are parameters) into blocks,
/// servers' chunks and buckets. No block crosses a unit. Blocks depend only on
/// the units, so results depend neither on the bucket size nor on the
/// assignment to servers. Chunks are balanced to within one block and may be
/// empty.
///
/// Blocks are ordered by bucket, then by server, so that a rank sends one range
/// of memory to each other rank.
class BlockLayout {
 public:
  BlockLayout() = default;
  /// Cuts the units. Throws Error(kInvalidArgument) with an option that is out
  /// of range.
  BlockLayout(std::span<const Range> units, const BlockOptions& options);
  /// Returns the layout of given buckets and chunks. pieces[k][s], a range of
  /// the flat array, is server s's chunk of bucket k. The ranges are adjacent
  /// in the order of s, and all buckets have the same number of them. A block
  /// is the part of a piece in one unit and one cell of the grid of sums
  /// (kernels::kSumChunk). Pieces begin and end on that grid, or with the
  /// array.
  [[nodiscard]] static BlockLayout of_pieces(
      std::span<const Range> units, std::span<const std::vector<Range>> pieces);

  /// Returns the layout of given blocks, bucket by bucket, and sorts them by
  /// server.
  [[nodiscard]] static BlockLayout of_blocks(
      std::vector<std::vector<Block>>&& buckets, int world_size);

  [[nodiscard]] std::span<const Block> blocks() const noexcept {
    return blocks_;
  }
  [[nodiscard]] std::span<const Bucket> buckets() const noexcept {
    return buckets_;
  }

  /// Returns the number of elements of a residual that covers every block.
  [[nodiscard]] std::size_t residual_size() const noexcept {
    return residual_size_;
  }
  [[nodiscard]] int world_size() const noexcept { return world_size_; }

 private:
  void cut_into_blocks(std::span<const Range> units,
                       const BlockOptions& options);
  void add_cells(std::span<const Range> units, Range piece, int server);

  std::vector<Block> blocks_;
  std::vector<Bucket> buckets_;
  std::size_t residual_size_ = 0;
  int world_size_ = 1;
};

}  // namespace thinwire::exchange
