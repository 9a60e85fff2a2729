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

/// An error-compensated low-bit average, whose buckets may become ready one by
/// one. It runs a ValueCodec over a pipeline. kBoth gives the average to all
/// ranks; kUp gives each rank the blocks that it serves. For each block, with x
/// of a rank times a factor:
///  worker   c = x * factor + e,  its record;  e = c - decoded record
///  server   c = mean over workers + d, its record;  d = c - decoded  (kBoth)
class LowBitExchange {
 public:
  /// Returns x of a block in fp32, fp16 or bf16. Several threads call it at
  /// once.
  using Source = std::function<ConstView(std::size_t block)>;
  /// Destination of averages.
  struct Output {
    View values;  ///< Averages in fp32, fp16 or bf16.
    float scale = 1;
    /// Whether values beyond the range of their dtype become its largest finite
    /// value, unless their block is not finite.
    bool saturates = true;
    /// First element of each block in `values`. If empty, Block::values gives
    /// it.
    std::span<const std::size_t> to{};
  };

  /// `layout` must outlive this object. kUp does not use the server's
  /// residuals.
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
  /// Sets the destination of averages; with kUp, before any bucket is ready.
  /// The memory may be that of x, because a block is encoded before it is
  /// written. Local.
  void write_to(const Output& to);
  /// Completes the run after all buckets are ready. Returns whether all
  /// averages written on this rank are finite. The caller then accepts or drops
  /// the residuals. Collective and blocking.
  bool finish();
  /// Ends a run and blocks until nothing is in flight. Local.
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

  // State of the present run.
  Source source_;
  float factor_ = 1;
  Output to_;
  std::atomic<bool> is_finite_ = true;
};

}  // namespace thinwire::exchange
