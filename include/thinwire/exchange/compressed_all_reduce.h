// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/active_mask.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::exchange {

struct CompressedAllReduceOptions {
  BlockOptions blocks{};
  /// Type of the residuals: kFloat32 or kBFloat16. Error feedback also corrects
  /// the rounding to bf16.
  DType residual_dtype = DType::kFloat32;
  /// Whether all_reduce() looks for non-finite input first, and changes nothing
  /// if it finds any.
  bool checks_finite = true;
  /// Whether all_reduce() compresses on a single rank, instead of doing
  /// nothing.
  bool compresses_alone = false;
  /// Whether the result before the last one is kept too, for previous_mean().
  /// It takes 0.13 bytes per element more.
  bool keeps_previous = false;
  /// Whether begin_early() is possible. It needs the residuals and records a
  /// second time, and the records of two buckets of other ranks. Excludes
  /// keeps_previous and `groups`.
  bool runs_early = false;
  /// Number of threads that encode and average early runs; see ThreadPool.
  int early_threads = 1;
};

/// Sees what this rank passes to the collectives. Called on the thread that
/// runs the exchange.
class WireObserver {
 public:
  virtual ~WireObserver() = default;
  /// Receives block `block` of this rank's values, encoded for its server.
  virtual void worker_record(std::size_t block, kernels::Signs signs) = 0;
  /// Receives the encoded average of block `block`, which this rank serves.
  virtual void server_record(std::size_t block, kernels::Signs signs) = 0;
  /// Receives elements `range` that are exchanged by an exact all-reduce beside
  /// it.
  virtual void exact(Range range, ConstView values) = 0;
  /// Receives this rank's part of an agreement on whether any gradient
  /// overflowed.
  virtual void overflow_flag(std::uint8_t /*own*/) {}
};

/// Error-compensated all-reduce with one bit per element each way:
///
///   worker   c = x + e;  s = scale(c), q = sign(c) per block;  e = c - s q
///            all-to-all: every block's (s, q) to its server
///   server   a = mean over ranks of s q, in rank order;  c = a + d;
///            s = scale(c), q = sign(c);  d = c - s q;  all-gather (s, q)
///   result   s q, the same bits on every rank
///
/// Nothing is lost: over any number of steps the results add up to the averaged
/// inputs less mean(e) + d. Bucket k + 1 is encoded while bucket k is in
/// flight. A rank sends about the following bytes, in two messages per bucket
/// and peer:
///   2 (W-1)/W (n/8 + 4 scales)
/// Source: arXiv:2102.02888, section 4, and arXiv:2104.06069. Departures:
/// scales are per block instead of per tensor, and there is no padding.
///
/// In a hierarchical exchange (`groups`, G ranks on each of H hosts) a host is
/// one worker, and W above is H. Each rank of a host encodes one piece of every
/// bucket, the same piece as its peers on the other hosts. The caller passes
/// the host's x. Results are then exchanged inside the host. Between hosts a
/// rank sends 1/G of those bytes.
class CompressedAllReduce {
 public:
  /// Returns x of a block (of its `values` range) that this rank encodes().
  /// Several threads may call it at once.
  using Source = std::function<kernels::SignInput(std::size_t block)>;
  /// Receives the result of a block. Several threads may call it at once. The
  /// words stay readable until the next run, or with keeps_previous until the
  /// run after that.
  using Sink = std::function<void(std::size_t block, kernels::Signs mean)>;
  /// Called by the thread of run() if the Sink has received all of these
  /// blocks.
  using Delivered = std::function<void(Range blocks)>;

  /// Divides the units into blocks. Local. `groups` are those of `comm`, or
  /// null if hosts are flat. They, `comm` and `pool` must outlive this object.
  /// Throws Error(kInvalidArgument) for an option out of range, a world size
  /// that is not the communicator's, and groups of other ranks.
  ///
  /// Holds two buckets' records of other ranks, and these bytes per element:
  ///   4 or 2           worker residual; in a hierarchical exchange 1/G of that
  ///   4/W or 2/W       server residual
  ///   0.13             records
  CompressedAllReduce(comm::Communicator& comm, ThreadPool& pool,
                      std::span<const Range> units,
                      const CompressedAllReduceOptions& options,
                      const comm::HostGroups* groups = nullptr);
  /// Uses the given blocks; options.blocks is unused.
  CompressedAllReduce(comm::Communicator& comm, ThreadPool& pool,
                      BlockLayout layout,
                      const CompressedAllReduceOptions& options,
                      const comm::HostGroups* groups = nullptr);
  ~CompressedAllReduce();

  /// Replaces `values` (fp32; the units' ranges of it) by the compressed
  /// average. Collective, done on return. Returns the lowest rank with
  /// non-finite values in the blocks that it encodes, or -1 if there is none.
  /// In the first case nothing changes on any rank.
  int all_reduce(View values);

  /// Averages like all_reduce(), but x is formed and the result used block by
  /// block. Collective, done on return. While the Sink receives blocks of one
  /// bucket, the Source may be called for those of a later one. x must be
  /// finite on all ranks, which is not checked. `delivered` may be empty.
  void run(const Source& source, const Sink& sink,
           const Delivered& delivered = {});

  /// Begins a run whose blocks become available bucket by bucket, the last
  /// bucket first. Local; only with runs_early. The run can be discarded: until
  /// accept_early() this object stays as the previous run has left it. Other
  /// functions must not be used until then. Threads of this object call
  /// `source`, which is kept as long.
  void begin_early(Source source);
  /// Returns whether a run has begun that has been neither accepted nor
  /// dropped.
  [[nodiscard]] bool has_early() const noexcept;
  /// Lets `source` be called for the next bucket. Collective, queued.
  void add_early();
  /// Returns the number of buckets that have not been added.
  [[nodiscard]] std::size_t left_early() const noexcept;
  /// Completes the run, and passes its results to the Sink. Collective, done on
  /// return, after all buckets.
  void accept_early(const Sink& sink, const Delivered& delivered = {});
  /// Discards the run, as if it had not begun. Local, done on return. All ranks
  /// drop it after the same number of add_early().
  void drop_early() noexcept;

  /// Runs the second half alone. Collective, done on return. Every server
  /// compresses x of its own blocks, with its residual. All ranks get the
  /// result, which is mean() from now on. The Source is called only for blocks
  /// that this rank serves. x must be finite.
  void share(const Source& source);

  /// Masks elements from the next run on, and sets their residuals to 0. Goes
  /// over the residuals of the blocks that this mask or the last one masks.
  void set_active(ActiveMask active);
  [[nodiscard]] const ActiveMask& active() const noexcept;
  void set_observer(WireObserver* observer) noexcept;

  [[nodiscard]] const BlockLayout& layout() const noexcept;
  /// Returns whether this rank encodes the block. If hosts are flat, it encodes
  /// every block, otherwise those of its piece.
  [[nodiscard]] bool encodes(std::size_t block) const noexcept;
  /// Returns the last run's result of a block. Scale and words are all 0 before
  /// the first run. A Source may read the block for which it is called, and
  /// gets the previous run's result. From then on the result is invalid until
  /// the Sink receives the block.
  [[nodiscard]] kernels::Signs mean(std::size_t block) const noexcept;
  /// Returns the result of the previous run: during run t, and after it, that
  /// of run t - 1. It is all 0 if there was none. Throws
  /// Error(kFailedPrecondition) without keeps_previous.
  [[nodiscard]] kernels::Signs previous_mean(std::size_t block) const;
  /// Returns the time that runs have waited for other ranks since construction.
  [[nodiscard]] double wait_seconds() const noexcept;

  /// Return this rank's residuals, valid until the next run. The worker's are
  /// those of the blocks that it encodes. The server's are those of its blocks,
  /// one after the other. No other thread may use this object meanwhile. After
  /// a run, memory holds the sums that were sent. The first call turns them
  /// into residuals, in one pass over that memory.
  [[nodiscard]] ConstView worker_error() const noexcept;
  [[nodiscard]] ConstView server_error() const noexcept;
  void clear_errors() noexcept;
  /// Sets the residuals. Throws Error(kCorruptCheckpoint) naming the array that
  /// does not fit, before anything changes.
  void load_errors(ConstView worker, ConstView server);
  /// Sets the residuals like load_errors(), without a copy.
  void take_errors(Buffer&& worker, Buffer&& server);
  /// Adds weight * values to worker_error(), for those elements of a block (of
  /// its `values` range) that are not masked. Local. Several threads may call
  /// it for different blocks, outside of run(). Throws Error(kInvalidArgument)
  /// for a block that does not exist or that another rank encodes.
  void add_to_worker_error(std::size_t block, const float* values,
                           float weight);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::exchange
