// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/active_mask.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

struct QuantizedAllReduceOptions {
  BlockOptions blocks{.bits = 4};  ///< bits 4 or 8; no scale per unit.
  /// What residuals are kept in: kFloat32, or kBFloat16 (rounded to nearest,
  /// which loses what falls below it).
  DType residual_dtype = DType::kFloat32;
  /// all_reduce(): find non-finite input first and change nothing then.
  bool checks_finite = true;
  /// Residuals of its own, which all_reduce() needs. run() does without them.
  bool keeps_errors = true;
};

/// All-reduce with 4 or 8 bits per element each way, one step per block:
///
///   worker   c = x;  (q, s) = quantize(c) per block;  error c - s q
///            all-to-all: every block's (q, s) to its server
///   server   c = mean over ranks of s q, in rank order;  (q, s) = quantize(c);
///            error c - s q;  all-gather (q, s)
///   result   s q, the same bits on every rank
///
/// run() hands both errors to the caller. all_reduce() feeds them back: x and
/// the servers' mean get the last call's error added first, so that over any
/// number of calls the results add up to the averaged inputs less mean(e) + d,
/// as with CompressedAllReduce, whose blocks, buckets and servers these are. A
/// rank sends about 2 (W-1)/W (n bits / 8 + 4 scales) bytes in two messages per
/// bucket and peer; by host as with CompressedAllReduce. The codec is
/// kernels/quantize.h's: 0 stays 0, and a step is the block's largest magnitude
/// over 2^(bits-1) - 1.
class QuantizedAllReduce {
 public:
  /// Writes x of a block, one that this rank encodes: as many floats as its
  /// `values`. May be called by several threads at once.
  using Source = std::function<void(std::size_t block, float* x)>;
  /// Takes what rounding took from a block, value less what was sent, 0 where
  /// masked: the worker's of this rank's x, the server's of the mean of a block
  /// that this rank serves. May be called by several threads at once.
  using Feedback = std::function<void(std::size_t block, const float* error)>;
  /// Takes the result of a block. May be called by several threads at once.
  using Sink = std::function<void(std::size_t block, const float* mean)>;

  /// Local. Holds bits / 8 bytes per element for the records, and two buckets'
  /// records for those of others; with keeps_errors 4 (or 2) bytes per element
  /// for the worker residual, by host that / G, and that / W for the server's.
  /// `groups` are those of `comm`; null: flat. All of them and `pool` must
  /// outlive this object. Throws Error(kInvalidArgument) for an option out of
  /// range, a world size that is not the communicator's, and groups of other
  /// ranks.
  QuantizedAllReduce(comm::Communicator& comm, ThreadPool& pool,
                     std::span<const Range> units,
                     const QuantizedAllReduceOptions& options,
                     const comm::HostGroups* groups = nullptr);
  ~QuantizedAllReduce();

  /// Collective, done on return: `values` (fp32; the units' ranges of it) is
  /// replaced by the compressed average; a group of one changes nothing.
  /// Returns the lowest rank whose values were not finite, on all ranks and
  /// with nothing changed, or -1. Throws Error(kFailedPrecondition) without
  /// keeps_errors.
  int all_reduce(View values);

  /// Collective, done on return: the same block by block, without residuals.
  /// A group of one rounds too. All four may be under way at once for blocks of
  /// different buckets. x must be finite on all ranks; nothing is checked.
  void run(const Source& source, const Feedback& worker, const Feedback& server,
           const Sink& sink);

  /// Masks elements from the next run on: they are 0, and so are their
  /// residuals.
  void set_active(ActiveMask active);
  [[nodiscard]] const ActiveMask& active() const noexcept;

  [[nodiscard]] const BlockLayout& layout() const noexcept;
  /// What it has spent waiting for other ranks since construction.
  [[nodiscard]] double wait_seconds() const noexcept;

  /// This rank's residuals: the worker's, of the blocks that it encodes, and
  /// the server's, its blocks' residuals one after the other. Empty without
  /// keeps_errors.
  [[nodiscard]] ConstView worker_error() const noexcept;
  [[nodiscard]] ConstView server_error() const noexcept;
  void clear_errors() noexcept;
  /// Throws Error(kCorruptCheckpoint) naming the array that does not fit,
  /// before anything changes; Error(kFailedPrecondition) without keeps_errors.
  void load_errors(ConstView worker, ConstView server);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::exchange
