// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "exchange/codec/sign.h"
#include "exchange/pipeline/pipeline.h"
#include "exchange/residuals.h"
#include "thinwire/exchange/compressed_all_reduce.h"

namespace thinwire::exchange {

/// The error-compensated average of CompressedAllReduce, whose buckets may
/// become ready one by one. It uses SignCodec in both directions of a pipeline,
/// with residuals for both. `groups` is null if hosts are flat.
class SignExchange {
 public:
  using Source = CompressedAllReduce::Source;
  using Sink = CompressedAllReduce::Sink;
  /// Called by the thread of the run after the Sink has received these blocks.
  using Delivered = std::function<void(Range blocks)>;

  struct Options {
    DType residual_dtype = DType::kFloat32;
    /// Whether to keep the result before the last one for previous_mean(). This
    /// needs 0.13 bytes per element.
    bool keeps_previous = false;
    /// Whether a run can be dropped, which doubles the memory of residuals and
    /// records. Excludes keeps_previous.
    bool can_drop = false;
  };

  /// `comm`, `groups` and `pool` must outlive this object.
  SignExchange(comm::Communicator& comm, const comm::HostGroups* groups,
               ThreadPool& pool, BlockLayout layout, const Options& options);

  /// Performs CompressedAllReduce::run(). `delivered` may be empty.
  void run(const Source& source, const Sink& sink,
           const Delivered& delivered = {});
  /// Runs only the second half of an exchange: every server encodes x of its
  /// own blocks with its residual. All ranks receive the result, which mean()
  /// returns from then on. The Source is called only for blocks that this rank
  /// serves. x must be finite. Collective and blocking.
  void share(const Source& source);

  /// Begins a run and queues all of it (Pipeline::launch()); finish() completes
  /// it. Until then, do not ask for residuals or results. Before it returns, it
  /// calls `source`, and `queued` with the blocks of each bucket. Collective,
  /// queued.
  void launch(const Source& source, const Delivered& queued = {});

  // ---- runs bucket by bucket, with can_drop
  /// Begins a run that can be dropped: until finish(), this object keeps the
  /// state of the previous run. `source` must live until then. Local.
  void begin(const Source& source);
  [[nodiscard]] bool has_begun() const noexcept {
    return pipeline_.has_begun();
  }
  /// Encodes a bucket and sends it. Collective, queued.
  void ready(std::size_t bucket) { pipeline_.ready(bucket); }
  /// Completes a launched run, or a run whose buckets are all ready, and passes
  /// the results to the Sink. Collective and blocking.
  void finish(const Sink& sink, const Delivered& delivered = {});
  /// Discards the run as if it had not begun. Local, but all ranks must do so
  /// after the same buckets.
  void drop() noexcept;

  /// Performs CompressedAllReduce::set_active().
  void set_active(ActiveMask active);
  [[nodiscard]] const ActiveMask& active() const noexcept { return active_; }
  void set_observer(WireObserver* observer) noexcept { observer_ = observer; }

  [[nodiscard]] const BlockLayout& layout() const noexcept { return layout_; }
  [[nodiscard]] const Places& places() const noexcept {
    return pipeline_.places();
  }
  [[nodiscard]] bool encodes(std::size_t block) const noexcept {
    return places().has(layout_.blocks()[block]);
  }
  /// Returns the last run's result of a block. For the block that it encodes, a
  /// Source gets the previous run's result, which the new signs overwrite
  /// unless runs can be dropped.
  [[nodiscard]] kernels::Signs mean(std::size_t block) const noexcept {
    return SignCodec::decode(pipeline_.result(block));
  }
  /// Returns a block's result of the previous run: during run t and after it,
  /// that of run t - 1. Requires keeps_previous.
  [[nodiscard]] kernels::Signs previous_mean(std::size_t block) const noexcept {
    return SignCodec::decode(pipeline_.previous(block));
  }
  [[nodiscard]] double wait_seconds() const noexcept {
    return pipeline_.wait_seconds();
  }

  /// Returns this rank's residuals as errors e. They keep this form until the
  /// next run.
  [[nodiscard]] Residuals& errors();
  /// Adds weight * values to the worker's residual of a block, for the active
  /// elements of its `values` range. Call it between runs; several threads may
  /// call it for different blocks. Throws Error(kInvalidArgument) if the block
  /// does not exist or another rank encodes it. Local.
  void add_to_worker_error(std::size_t block, const float* values,
                           float weight);

 private:
  [[nodiscard]] RunSteps steps(const Source& source);
  void encode(ResidualSide& side, const Source& source, std::size_t block,
              std::uint8_t* record);
  void average(std::size_t block, SentRecords sent, std::uint8_t* record);
  [[nodiscard]] kernels::SignBlock block_of(std::size_t b,
                                            const KeptResidual& kept) const;

  const BlockLayout layout_;
  ActiveMask active_;
  WireObserver* observer_ = nullptr;
  Pipeline pipeline_;
  Residuals residuals_;
};

}  // namespace thinwire::exchange
