// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "exchange/codec/codec.h"
#include "exchange/pipeline/pipeline.h"
#include "exchange/residuals.h"
#include "thinwire/core/view.h"

namespace thinwire::exchange {

/// An error-compensated average in few bits, whose buckets may become ready one
/// by one: a ValueCodec over a pipeline. kBoth gives the average to all ranks,
/// kUp gives each rank the blocks that it serves. Per block, with x of a rank
/// times a factor:
///   worker   c = x * factor + e,  its record;  e = c less what was sent
///   server   c = mean over workers + d, its record;  d = c less that  (kBoth)
class LowBitExchange {
 public:
  /// Returns x of a block: fp32, fp16 or bf16. Several threads call it at once.
  using Source = std::function<ConstView(std::size_t block)>;
  /// Destination of averages.
  struct Output {
    View values;  ///< fp32, fp16 or bf16.
    float scale = 1;
    /// Whether values beyond the range of their type become its largest finite
    /// one, unless their block is not finite.
    bool saturates = true;
    /// Per block its first element in `values`; empty: that of Block::values.
    std::span<const std::size_t> to{};
  };

  /// `layout` must outlive it. kUp does not use the server's residuals.
  LowBitExchange(const Route& route, ThreadPool& pool,
                 const BlockLayout& layout, const ValueCodec& codec,
                 const Pipeline::Options& options, Residuals&& own);

  /// Begins a run. Local.
  void begin(Source source, float factor);
  [[nodiscard]] bool has_begun() const noexcept {
    return pipeline_.has_begun();
  }
  /// Encodes a bucket. Collective, queued.
  void ready(std::size_t bucket) { pipeline_.ready(bucket); }
  void ready_all();
  void queue_rest() { pipeline_.queue_rest(); }
  /// Writes averages to `to` from now on; kUp needs it before a bucket is
  /// ready. The memory may be that of x, because a block is encoded before it
  /// is written. Local.
  void write_to(const Output& to);
  /// Completes the run, all of whose buckets are ready. Returns whether all
  /// averages that this rank has written are finite. The caller accepts or
  /// drops the residuals. Collective, done on return.
  bool finish();
  /// Ends a run, and blocks until nothing is in flight. Local.
  void drop() noexcept { pipeline_.drop(); }

  [[nodiscard]] double wait_seconds() const noexcept {
    return pipeline_.wait_seconds();
  }

  Residuals residuals;

 private:
  void encode(std::size_t block, std::uint8_t* record);
  void average(std::size_t block, SentRecords sent, std::uint8_t* record);
  void write(std::size_t block, std::span<float> mean, bool is_finite);

  const BlockLayout& layout_;
  const ValueCodec& codec_;
  const bool goes_down_;
  Pipeline pipeline_;

  // The run that has begun.
  Source source_;
  float factor_ = 1;
  Output to_;
  std::atomic<bool> is_finite_ = true;
};

}  // namespace thinwire::exchange
