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

/// The error-compensated average of CompressedAllReduce. It uses SignCodec in
/// both directions of a pipeline, with residuals for both. `groups` is null if
/// hosts are flat.
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

  // ---- runs that are queued at once
  /// Begins a run and queues all of it (Pipeline::launch()); finish() completes
  /// it. Until then, do not ask for residuals or results. Before it returns, it
  /// calls `source`, and `queued` with the blocks of each bucket. Collective,
  /// queued.
  void launch(const Source& source, const Delivered& queued = {});
  [[nodiscard]] bool has_begun() const noexcept {
    return pipeline_.has_begun();
  }
  /// Waits for a launched run and passes the results to the Sink. Local.
  void finish(const Sink& sink);
  /// Discards a launched run that has failed. Sets residuals to 0. Local.
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
  /// Source gets the previous run's result, which the new signs overwrite.
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
