// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exchange/codec/codec.h"
#include "thinwire/core/buffer.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

/// Offsets of the records of a layout's blocks, which are adjacent and in the
/// order of blocks. The layout must outlive this object.
class RecordMap {
 public:
  RecordMap(const BlockLayout& layout, const Codec& codec);

  /// Returns the byte offset of a block's record. `block` may be the number of
  /// blocks.
  [[nodiscard]] std::size_t begin(std::size_t block) const noexcept {
    return begin_[block];
  }
  /// Returns the bytes of the chunks of servers [first, end) in a bucket.
  [[nodiscard]] Range chunks(const Bucket& bucket, std::size_t first,
                             std::size_t end) const {
    const std::size_t from = begin_[bucket.server_begin[first]];
    return {from, begin_[bucket.server_begin[end]] - from};
  }
  [[nodiscard]] std::vector<std::size_t> chunk_sizes(const Bucket& bucket,
                                                     std::size_t first,
                                                     std::size_t end) const;
  [[nodiscard]] const BlockLayout& layout() const noexcept { return *layout_; }

 private:
  const BlockLayout* layout_;
  std::vector<std::size_t> begin_;  // per block, then the end
};

/// The records of one bucket in a run's memory.
class BucketRecords {
 public:
  BucketRecords(const RecordMap& map, const Bucket& bucket, std::uint8_t* first)
      : map_(map),
        bucket_(bucket),
        first_(first),
        begin_(map.begin(bucket.first_block())) {}

  [[nodiscard]] std::uint8_t* at(std::size_t block) const {
    return first_ + (map_.begin(block) - begin_);
  }
  /// Returns the chunks of servers [first, end).
  [[nodiscard]] View chunks(std::size_t first, std::size_t end) const {
    return {at(bucket_.server_begin[first]),
            map_.chunks(bucket_, first, end).size, DType::kUInt8};
  }

 private:
  const RecordMap& map_;
  const Bucket& bucket_;
  std::uint8_t* first_;
  std::size_t begin_;
};

/// Records of one block from all workers.
using SentRecords = std::span<const std::uint8_t* const>;

/// Records of one bucket that this rank, as its server, has received from all
/// workers.
class Received {
 public:
  Received(const RecordMap& map, const Bucket& bucket, std::size_t server,
           std::size_t workers, const std::uint8_t* bytes)
      : map_(map),
        bytes_(bytes),
        chunk_(map.chunks(bucket, server, server + 1)),
        records_(workers) {}

  /// Returns a block's records in the order of workers. They are valid until
  /// the next call.
  [[nodiscard]] SentRecords records(std::size_t block) {
    for (std::size_t from = 0; from < records_.size(); ++from)
      records_[from] =
          bytes_ + from * chunk_.size + (map_.begin(block) - chunk_.offset);
    return records_;
  }

 private:
  const RecordMap& map_;
  const std::uint8_t* bytes_;
  Range chunk_;
  std::vector<const std::uint8_t*> records_;
};

}  // namespace thinwire::exchange
