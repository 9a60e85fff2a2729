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
  /// Whether all_reduce() compresses on a single rank, instead of doing
  /// nothing.
  bool compresses_alone = false;
};

class SignExchange;

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
  /// Returns x of a block (of its `values` range) that this rank encodes.
  /// Several threads may call it at once.
  using Source = std::function<kernels::SignInput(std::size_t block)>;
  /// Receives the result of a block. Several threads may call it at once. The
  /// words stay readable until the next run.
  using Sink = std::function<void(std::size_t block, kernels::Signs mean)>;

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
  ~CompressedAllReduce();

  /// Replaces `values` (fp32; the units' ranges of it) by the compressed
  /// average. Collective, done on return. Returns the lowest rank with
  /// non-finite values in the blocks that it encodes, or -1 if there is none.
  /// In the first case nothing changes on any rank.
  int all_reduce(View values);

  /// Averages like all_reduce(), but x is formed and the result used block by
  /// block. Collective, done on return. While the Sink receives blocks of one
  /// bucket, the Source may be called for those of a later one. x must be
  /// finite on all ranks, which is not checked.
  void run(const Source& source, const Sink& sink);

  /// Masks elements from the next run on, and sets their residuals to 0. Goes
  /// over the residuals of the blocks that this mask or the last one masks.
  void set_active(ActiveMask active);
  void set_observer(WireObserver* observer) noexcept;

  [[nodiscard]] const BlockLayout& layout() const noexcept;
  /// Returns the last run's result of a block. Scale and words are all 0 before
  /// the first run. A Source may read the block for which it is called, and
  /// gets the previous run's result. From then on the result is invalid until
  /// the Sink receives the block.
  [[nodiscard]] kernels::Signs mean(std::size_t block) const noexcept;
  /// Returns the time that runs have waited for other ranks since construction.
  [[nodiscard]] double wait_seconds() const noexcept;

  /// Return this rank's residuals, valid until the next run. The worker's are
  /// those of the blocks that it encodes. The server's are those of its blocks,
  /// one after the other. No other thread may use this object meanwhile. After
  /// a run, memory holds the sums that were sent. The first call turns them
  /// into residuals, in one pass over that memory.
  [[nodiscard]] ConstView worker_error() const noexcept;
  [[nodiscard]] ConstView server_error() const noexcept;
  /// Sets the residuals. Throws Error(kCorruptCheckpoint) naming the array that
  /// does not fit, before anything changes.
  void load_errors(ConstView worker, ConstView server);

 private:
  comm::Communicator& comm_;
  const CompressedAllReduceOptions options_;
  std::unique_ptr<SignExchange> exchange_;
};

}  // namespace thinwire::exchange
