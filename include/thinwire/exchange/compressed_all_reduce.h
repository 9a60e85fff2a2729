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
  /// What residuals are kept in: kFloat32, or kBFloat16 (its rounding becomes
  /// part of what the residual corrects).
  DType residual_dtype = DType::kFloat32;
  /// all_reduce(): find non-finite input first and change nothing then.
  bool checks_finite = true;
  /// all_reduce(): a group of one compresses too, instead of doing nothing.
  bool compresses_alone = false;
  /// Keep the result before the last one too, for previous_mean(): 0.13 bytes
  /// per element more.
  bool keeps_previous = false;
  /// For begin_early(): residuals and records a second time, and two buckets'
  /// records of others. Without keeps_previous.
  bool runs_early = false;
  /// Threads that encode and average early runs, as ThreadPool takes them.
  int early_threads = 1;
};

/// Sees what this rank hands to the collectives. Called on the thread that runs
/// the exchange.
class WireObserver {
 public:
  virtual ~WireObserver() = default;
  /// Block `block` of this rank's values, encoded for its server.
  virtual void worker_record(std::size_t block, kernels::Signs signs) = 0;
  /// Block `block`, which this rank serves: the encoded average.
  virtual void server_record(std::size_t block, kernels::Signs signs) = 0;
  /// Elements `range` that go into an exact all-reduce beside it.
  virtual void exact(Range range, ConstView values) = 0;
  /// This rank's part of an agreement on whether any gradient overflowed.
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
/// inputs less mean(e) + d. Bucket k + 1 is encoded while bucket k travels. A
/// rank sends about 2 (W-1)/W (n/8 + 4 scales) bytes in two messages per bucket
/// and peer. Source: arXiv:2102.02888, section 4, and arXiv:2104.06069; scales
/// per block instead of per tensor, and no padding, are departures.
///
/// By host (`groups`, G ranks on each of H hosts) a host is one worker: W above
/// is H, and of every bucket each of a host's ranks encodes one piece, the same
/// as its peers on the other hosts. Its x is to be the host's. Results then go
/// round inside the host. Between hosts a rank sends 1/G of those bytes.
class CompressedAllReduce {
 public:
  /// Gives x of a block (of its `values` range), one that this rank encodes().
  /// May be called by several threads at once.
  using Source = std::function<kernels::SignInput(std::size_t block)>;
  /// Takes the result of a block. May be called by several threads at once; the
  /// words stay readable until the next run, with keeps_previous until the run
  /// after it.
  using Sink = std::function<void(std::size_t block, kernels::Signs mean)>;

  /// Local. Holds 4 (or 2) bytes per element for the worker residual, by host
  /// that / G, that / W for the server's, 0.13 for the records, and two
  /// buckets' records for those of others. `groups` are those of `comm`; null:
  /// flat. All of them and `pool` must outlive this object. Throws
  /// Error(kInvalidArgument) for an option out of range, a world size that is
  /// not the communicator's, and groups of other ranks.
  CompressedAllReduce(comm::Communicator& comm, ThreadPool& pool,
                      std::span<const Range> units,
                      const CompressedAllReduceOptions& options,
                      const comm::HostGroups* groups = nullptr);
  /// The same of blocks that are given; options.blocks is not used.
  CompressedAllReduce(comm::Communicator& comm, ThreadPool& pool,
                      BlockLayout layout,
                      const CompressedAllReduceOptions& options,
                      const comm::HostGroups* groups = nullptr);
  ~CompressedAllReduce();

  /// Collective, done on return: `values` (fp32; the units' ranges of it) is
  /// replaced by the compressed average. Returns the lowest rank whose values
  /// (of the blocks that it encodes) were not finite, on all ranks and with
  /// nothing changed, or -1.
  int all_reduce(View values);

  /// Collective, done on return: the same with x formed and the result used
  /// block by block. While the Sink gets blocks of one bucket, the Source may
  /// be asked for those of a later one. x must be finite on all ranks; nothing
  /// is checked.
  void run(const Source& source, const Sink& sink);

  /// Local: begins a run whose blocks are there bucket by bucket, the last
  /// bucket first, and that can be taken back: until accept_early() this
  /// object is as the run before has left it, and may not be used otherwise.
  /// `source` is asked by threads of this object, and is kept until then. With
  /// runs_early only.
  void begin_early(Source source);
  /// A run has begun that has been neither accepted nor dropped.
  [[nodiscard]] bool has_early() const noexcept;
  /// Collective, queued: `source` may be asked for the next bucket.
  void add_early();
  /// How many buckets have not been added.
  [[nodiscard]] std::size_t left_early() const noexcept;
  /// Collective, done on return, after all buckets: the run counts, and the
  /// Sink gets its results.
  void accept_early(const Sink& sink);
  /// Local, done on return: as if the run had not begun. All ranks drop it
  /// after as many add_early().
  void drop_early() noexcept;

  /// Collective, done on return: the second half alone. Every server compresses
  /// x of its own blocks, with its residual, and all ranks get the result,
  /// which is mean() from now on. Only blocks that this rank serves are asked
  /// for. x must be finite.
  void share(const Source& source);

  /// Masks elements from the next run on; their residuals become 0. Goes over
  /// the residuals of the blocks that this mask or the last one masks.
  void set_active(ActiveMask active);
  [[nodiscard]] const ActiveMask& active() const noexcept;
  void set_observer(WireObserver* observer) noexcept;

  [[nodiscard]] const BlockLayout& layout() const noexcept;
  /// Flat: every block; by host, those of this rank's piece.
  [[nodiscard]] bool encodes(std::size_t block) const noexcept;
  /// The last run's result of a block; scale and words all zero before the
  /// first. A Source may read that of the block it is asked for: it is the run
  /// before's. Of no use from then on until the Sink has the block.
  [[nodiscard]] kernels::Signs mean(std::size_t block) const noexcept;
  /// The result of the run before: during run t and after it that of run t - 1;
  /// all zero if there was none. Throws Error(kFailedPrecondition) without
  /// keeps_previous.
  [[nodiscard]] kernels::Signs previous_mean(std::size_t block) const;
  /// What run() has spent waiting for other ranks since construction.
  [[nodiscard]] double wait_seconds() const noexcept;

  /// This rank's residuals: the worker's, of the blocks that it encodes, and
  /// the server's, its blocks' residuals one after the other; of no use from
  /// the next run on. Not while another thread uses this object: after a run
  /// memory holds the sums that were sent, and the first call makes residuals
  /// of them, in a pass over that memory.
  [[nodiscard]] ConstView worker_error() const noexcept;
  [[nodiscard]] ConstView server_error() const noexcept;
  void clear_errors() noexcept;
  /// Throws Error(kCorruptCheckpoint) naming the array that does not fit,
  /// before anything changes.
  void load_errors(ConstView worker, ConstView server);
  /// The same without a copy.
  void take_errors(Buffer&& worker, Buffer&& server);
  /// Local: worker_error() += weight * values, for the elements of a block (of
  /// its `values` range) that are not masked. Several threads may do this for
  /// different blocks, outside of run(). Throws Error(kInvalidArgument) for a
  /// block that is not there, or that another rank encodes.
  void add_to_worker_error(std::size_t block, const float* values,
                           float weight);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::exchange
