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
/// become ready one by one: SignCodec both ways over a pipeline, with the
/// residuals of both. `groups` is null if hosts are flat.
class SignExchange {
 public:
  using Source = CompressedAllReduce::Source;
  using Sink = CompressedAllReduce::Sink;
  /// Called by the thread of the run if the Sink has received these blocks.
  using Delivered = std::function<void(Range blocks)>;

  struct Options {
    DType residual_dtype = DType::kFloat32;
    /// Whether the result before the last one is kept too, for previous_mean().
    /// It takes 0.13 bytes per element.
    bool keeps_previous = false;
    /// Whether a run can be dropped. It takes residuals and records a second
    /// time. Excludes keeps_previous.
    bool can_drop = false;
  };

  /// `comm`, `groups` and `pool` must outlive it.
  SignExchange(comm::Communicator& comm, const comm::HostGroups* groups,
               ThreadPool& pool, BlockLayout layout, const Options& options);

  /// Does what CompressedAllReduce::run() does. `delivered` may be empty.
  void run(const Source& source, const Sink& sink,
           const Delivered& delivered = {});
  /// Runs the way down alone: every server encodes x of its own blocks, with
  /// its residual, and all ranks get the result, which is mean() from now on.
  /// The Source is called only for blocks that this rank serves. x must be
  /// finite. Collective, done on return.
  void share(const Source& source);

  /// Begins a run that finish() completes, and queues all of it
  /// (Pipeline::launch()). Until then neither residuals nor results may be
  /// asked for. Calls `source`, and `queued` with the blocks of each bucket,
  /// before it returns. Collective, queued.
  void launch(const Source& source, const Delivered& queued = {});

  // ---- the same bucket by bucket, with can_drop
  /// Begins a run, which can be dropped: until finish() this object stays as
  /// the run before has left it. `source` is kept as long. Local.
  void begin(const Source& source);
  [[nodiscard]] bool has_begun() const noexcept {
    return pipeline_.has_begun();
  }
  /// Encodes a bucket. Collective, queued.
  void ready(std::size_t bucket) { pipeline_.ready(bucket); }
  /// Completes the run, launched or all of whose buckets are ready, and passes
  /// results to
  /// the Sink. Collective, done on return.
  void finish(const Sink& sink, const Delivered& delivered = {});
  /// Discards the run, as if it had not begun. Local: all ranks do so after the
  /// same buckets.
  void drop() noexcept;

  /// Does what CompressedAllReduce::set_active() does.
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
  /// Returns the last run's result of a block. A Source gets that of the run
  /// before for the block that is being encoded, whose signs are written over
  /// it unless runs can be dropped.
  [[nodiscard]] kernels::Signs mean(std::size_t block) const noexcept {
    return SignCodec::decode(pipeline_.result(block));
  }
  /// Returns the result of the run before: during run t and after it that of
  /// run t - 1. Only with keeps_previous.
  [[nodiscard]] kernels::Signs previous_mean(std::size_t block) const noexcept {
    return SignCodec::decode(pipeline_.previous(block));
  }
  [[nodiscard]] double wait_seconds() const noexcept {
    return pipeline_.wait_seconds();
  }

  /// Returns this rank's residuals, which are errors e from now until the next
  /// run.
  [[nodiscard]] Residuals& errors();
  /// Adds weight * values to the worker's residual, for those elements of a
  /// block (of its `values` range) that are not masked. Local. Several threads
  /// may call it for different blocks, between runs. Throws
  /// Error(kInvalidArgument) for a block that does not exist or that another
  /// rank encodes.
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
