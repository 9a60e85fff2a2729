// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/kernels/quantize.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::exchange {

/// The records of all blocks, as they travel: a float, then the words of its
/// codes. The layout must outlive it.
class Records {
 public:
  Records() = default;
  explicit Records(const BlockLayout& layout)
      : layout_(&layout),
        bytes_(Buffer::of<std::uint8_t>(layout.records_size())) {}

  [[nodiscard]] std::uint8_t* at(std::size_t block) {
    return bytes_.as<std::uint8_t>().data() + layout_->blocks()[block].record;
  }
  [[nodiscard]] const std::uint8_t* at(std::size_t block) const {
    return bytes_.as<std::uint8_t>().data() + layout_->blocks()[block].record;
  }

  /// Returns a bucket's records that servers [begin, end) average.
  [[nodiscard]] View chunks(const Bucket& bucket, std::size_t begin,
                            std::size_t end);

 private:
  const BlockLayout* layout_ = nullptr;
  Buffer bytes_;
};

[[nodiscard]] std::size_t chunk_bytes(const BlockLayout& layout,
                                      const Bucket& bucket, std::size_t server);
/// Returns chunk_bytes() of servers [begin, end).
[[nodiscard]] std::vector<std::size_t> chunk_sizes(const BlockLayout& layout,
                                                   const Bucket& bucket,
                                                   std::size_t begin,
                                                   std::size_t end);

/// Returns memory for what `workers` send to a server of any bucket.
[[nodiscard]] Buffer make_received(const BlockLayout& layout,
                                   std::size_t workers, std::size_t server);
/// Sends workers their chunks of `records`, which lie one after the other and
/// have these `sizes`, and receives all workers' chunks of number `own`.
/// Collective, queued.
[[nodiscard]] comm::Work queue_to_servers(comm::Communicator& workers,
                                          View records,
                                          std::span<const std::size_t> sizes,
                                          std::size_t own, Buffer& received);

/// The records of one bucket that all workers sent to this rank, its server.
class Received {
 public:
  Received(const BlockLayout& layout, const Bucket& bucket, std::size_t server,
           const std::uint8_t* bytes)
      : layout_(&layout),
        bytes_(bytes),
        begin_(layout.record_begin(bucket.server_begin[server])),
        stride_(chunk_bytes(layout, bucket, server)) {}

  [[nodiscard]] const std::uint8_t* record(std::size_t from,
                                           std::size_t block) const {
    return bytes_ + from * stride_ + (layout_->record_begin(block) - begin_);
  }

 private:
  const BlockLayout* layout_;
  const std::uint8_t* bytes_;
  std::size_t begin_;
  std::size_t stride_;
};

/// Threads share a range of blocks out in multiples of this.
inline constexpr std::size_t kBlocksPerGrain = 16;
/// Calls body(part) for parts of a range of blocks, shared out over threads.
inline void for_parts(ThreadPool& pool, Range blocks,
                      const std::function<void(Range part)>& body) {
  pool.for_ranges(blocks.size, kBlocksPerGrain,
                  [&](std::size_t begin, std::size_t end) {
                    body({blocks.offset + begin, end - begin});
                  });
}

[[nodiscard]] inline float scale_of(const std::uint8_t* record) {
  float scale = 0;
  std::memcpy(&scale, record, sizeof scale);
  return scale;
}

inline void set_scale(std::uint8_t* record, float scale) {
  std::memcpy(record, &scale, sizeof scale);
}

[[nodiscard]] inline const std::uint32_t* words_of(const std::uint8_t* record) {
  return reinterpret_cast<const std::uint32_t*>(record + sizeof(float));
}

[[nodiscard]] inline std::uint32_t* words_of(std::uint8_t* record) {
  return reinterpret_cast<std::uint32_t*>(record + sizeof(float));
}

/// Returns the content of a record of 1 bit per element.
[[nodiscard]] inline kernels::Signs signs_in(const std::uint8_t* record) {
  return {words_of(record), scale_of(record)};
}

/// Returns the content of a record of 4 or 8 bits per element.
[[nodiscard]] inline kernels::Quantized quantized_in(
    const std::uint8_t* record) {
  return {words_of(record), scale_of(record)};
}

/// Writes the record of a sum in 4 or 8 bits, and what rounding takes to
/// `sum.error`.
inline void write_quantized(std::uint8_t* record,
                            const kernels::QuantizedSum& sum, int bits) {
  set_scale(record, kernels::quantize_sum(sum, bits, words_of(record)));
}

/// Averages what workers sent for the blocks of one bucket.
class QuantizedMean {
 public:
  /// Results are sums times `factor`. `from` must outlive this object.
  QuantizedMean(const Received& from, std::size_t workers, int bits,
                float factor)
      : from_(from), bits_(bits), factor_(factor), sent_(workers) {}

  /// Writes the result of a block, which has as many elements as `mean`.
  void write(std::size_t block, std::span<float> mean);

 private:
  const Received& from_;
  int bits_;
  float factor_;
  std::vector<kernels::Quantized> sent_;
};

}  // namespace thinwire::exchange
