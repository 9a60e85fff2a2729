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
  /// Dtype of the residuals: kFloat32 or kBFloat16. Error feedback also
  /// corrects the rounding to bf16.
  DType residual_dtype = DType::kFloat32;
  /// Whether all_reduce() compresses on a single rank, instead of doing
  /// nothing.
  bool compresses_alone = false;
};

class SignExchange;

/// Observes the data that this rank passes to the collectives. Called on the
/// thread that runs the exchange.
class WireObserver {
 public:
  virtual ~WireObserver() = default;
  /// Receives block `block` of this rank's values, encoded for its server.
  virtual void worker_record(std::size_t block, kernels::Signs signs) = 0;
  /// Receives the encoded average of block `block`, which this rank serves.
  virtual void server_record(std::size_t block, kernels::Signs signs) = 0;
  /// Receives elements `range` that are exchanged exactly, in addition to the
  /// blocks.
  virtual void exact(Range range, ConstView values) = 0;
  /// Receives this rank's flag in an agreement on whether any gradient
  /// overflowed.
  virtual void overflow_flag(std::uint8_t /*own*/) {}
};

/// An error-compensated all-reduce with one bit per element in each direction:
///   worker   c = x + e;  s = scale(c), q = sign(c) per block;  e = c - s q
///            all-to-all: every block's (s, q) to its server
///   server   a = mean over ranks of s q, in rank order;  c = a + d;
///            s = scale(c), q = sign(c);  d = c - s q;  all-gather (s, q)
///   result   s q, the same bits on every rank
/// No update is lost: over any number of steps, the results add up to the
/// averaged inputs minus (mean(e) + d). Bucket k + 1 is encoded while bucket k
/// is in flight. A rank sends about the following bytes, in two messages per
/// bucket and peer:
///   2 (W-1)/W (n/8 + 4 scales)
/// Source: arXiv:2102.02888, section 4, and arXiv:2104.06069. Departures:
/// scales are per block instead of per tensor, and there is no padding.
///
/// In a hierarchical exchange (`groups`, G ranks on each of H hosts) a host is
/// one worker, and W above is H. Each rank of a host encodes one piece of every
/// bucket, the same piece as its peers on the other hosts. The caller passes
/// the host's x. Hosts then exchange the results internally. Between hosts a
/// rank sends 1/G of those bytes.
class CompressedAllReduce {
 public:
  /// Returns x for the `values` range of a block that this rank encodes.
  /// Several threads may call it at once.
  using Source = std::function<kernels::SignInput(std::size_t block)>;
  /// Receives the result of a block. Several threads may call it at once. The
  /// words remain readable until the next run.
  using Sink = std::function<void(std::size_t block, kernels::Signs mean)>;

  /// Divides the units into blocks. Local. `groups` belongs to `comm`, or is
  /// null if hosts are flat; both, and `pool`, must outlive this object. Throws
  /// Error(kInvalidArgument) if an option is out of range, the world size
  /// differs from the communicator's, or `groups` has other ranks.
  ///
  /// Holds the records of other ranks for two buckets, and these bytes per
  /// element:
  ///  4 or 2           worker residual; in a hierarchical exchange 1/G of that
  ///  4/W or 2/W       server residual
  ///  0.13             records
  CompressedAllReduce(comm::Communicator& comm, ThreadPool& pool,
                      std::span<const Range> units,
                      const CompressedAllReduceOptions& options,
                      const comm::HostGroups* groups = nullptr);
  ~CompressedAllReduce();

  /// Replaces the units' ranges of `values` (fp32) with the compressed average.
  /// Collective and blocking. If blocks contain non-finite values, changes
  /// nothing on any rank and returns the lowest rank that encodes such a block.
  /// Otherwise returns -1.
  int all_reduce(View values);

  /// Averages like all_reduce(), but computes x and uses the result block by
  /// block. Collective and blocking. While the Sink receives blocks of one
  /// bucket, the Source may be called for those of a later one. x must be
  /// finite on all ranks, which is not checked.
  void run(const Source& source, const Sink& sink);

  /// Masks elements from the next run on, and sets their residuals to 0. Reads
  /// the residuals of all blocks that the new or the previous mask affects.
  void set_active(ActiveMask active);
  void set_observer(WireObserver* observer) noexcept;

  [[nodiscard]] const BlockLayout& layout() const noexcept;
  /// Returns the last run's result of a block. Scale and words are all 0 before
  /// the first run. During a run, a Source may read the previous run's result
  /// of the block for which it is called. Afterwards the result is invalid
  /// until the Sink receives the block.
  [[nodiscard]] kernels::Signs mean(std::size_t block) const noexcept;
  /// Returns the time that runs have spent waiting for other ranks since
  /// construction.
  [[nodiscard]] double wait_seconds() const noexcept;

  /// Return this rank's residuals, valid until the next run. The worker's
  /// residuals belong to the blocks that it encodes, the server's to the blocks
  /// that it serves, in order. No other thread may use this object meanwhile.
  /// After a run, memory holds the sums that were sent. The first call converts
  /// them to residuals in one pass.
  [[nodiscard]] ConstView worker_error() const noexcept;
  [[nodiscard]] ConstView server_error() const noexcept;
  /// Sets the residuals. Throws Error(kCorruptCheckpoint) with the array that
  /// does not fit, before anything changes.
  void load_errors(ConstView worker, ConstView server);

 private:
  comm::Communicator& comm_;
  const CompressedAllReduceOptions options_;
  std::unique_ptr<SignExchange> exchange_;
};

}  // namespace thinwire::exchange
