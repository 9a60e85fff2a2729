// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/block_layout.h"

namespace thinwire::exchange {

struct QuantizedAllReduceOptions {
  BlockOptions blocks{.bits = 4};  ///< 4 or 8 bits; no scale per unit.
  /// Type of the residuals: kFloat32 or kBFloat16. With kBFloat16 they are
  /// rounded to nearest, and the remainder is lost.
  DType residual_dtype = DType::kFloat32;
  /// Whether all_reduce() looks for non-finite input first, and changes nothing
  /// if it finds any.
  bool checks_finite = true;
};

/// All-reduce with 4 or 8 bits per element each way, and one quantization step
/// per block:
///
///   worker   c = x + e;  (q, s) = quantize(c) per block;  e = c - s q
///            all-to-all: every block's (q, s) to its server
///   server   c = mean over ranks of s q, in rank order, plus d;
///            (q, s) = quantize(c);  d = c - s q;  all-gather (q, s)
///   result   s q, the same bits on every rank
///
/// Nothing is lost: over any number of calls the results add up to the averaged
/// inputs less mean(e) + d.
/// Blocks, buckets and servers are those of CompressedAllReduce, and so is the
/// hierarchical exchange. A rank sends about the following bytes, in two
/// messages per bucket and peer:
///   2 (W-1)/W (n bits / 8 + 4 scales)
/// The codec is that of kernels/quantize.h. 0 stays 0, and a step is the
/// block's largest magnitude over 2^(bits-1) - 1.
class QuantizedAllReduce {
 public:
  /// Returns x of a block that this rank encodes: fp32, fp16 or bf16. Several
  /// threads may call it at once.
  using Values = std::function<ConstView(std::size_t block)>;

  /// Divides the units into blocks. Local. `groups` are those of `comm`, or
  /// null if hosts are flat. They, `comm` and `pool` must outlive this object.
  /// Throws Error(kInvalidArgument) for an option out of range, a world size
  /// that is not the communicator's, and groups of other ranks.
  ///
  /// Holds two buckets' records of other ranks, and these bytes per element:
  ///   bits / 8         records
  ///   4 or 2           worker residual; in a hierarchical exchange 1/G of that
  ///   4/W or 2/W       server residual
  QuantizedAllReduce(comm::Communicator& comm, ThreadPool& pool,
                     std::span<const Range> units,
                     const QuantizedAllReduceOptions& options,
                     const comm::HostGroups* groups = nullptr);
  ~QuantizedAllReduce();

  /// Replaces `values` (fp32; the units' ranges of it) by the compressed
  /// average. Collective, done on return. A single rank changes nothing.
  /// Returns the lowest rank with non-finite values, or -1 if there is none. In
  /// the first case nothing changes on any rank.
  int all_reduce(View values);

  /// Begins an all_reduce() whose buckets become available one by one. x is
  /// values(block) * factor, rounded to float. Local. `values` is kept until
  /// the end. Nothing looks for non-finite input; it makes the results NaN.
  void begin(Values values, float factor);
  [[nodiscard]] bool has_begun() const noexcept;
  /// Encodes a bucket of the layout and sends it; completes earlier ones as
  /// they arrive. Collective, queued. All ranks add the buckets in the same
  /// order, each once.
  void add(std::size_t bucket);
  /// Completes the run. Collective, done on return, after all buckets.
  void finish();
  /// Ends a run that is not to count, and sets the residuals to 0. Local, done
  /// on return. All ranks do so after the same number of add(), or after
  /// finish().
  void abandon() noexcept;
  /// Writes the last run's result of a block: as many floats as its `values`.
  /// Several threads may call it at once.
  void read(std::size_t block, float* mean) const;

  [[nodiscard]] const BlockLayout& layout() const noexcept;
  /// Returns the time spent waiting for other ranks since construction.
  [[nodiscard]] double wait_seconds() const noexcept;

  /// Return this rank's residuals. The worker's are those of the blocks that it
  /// encodes. The server's are those of its blocks, one after the other.
  [[nodiscard]] ConstView worker_error() const noexcept;
  [[nodiscard]] ConstView server_error() const noexcept;
  void clear_errors() noexcept;
  /// Sets the residuals. Throws Error(kCorruptCheckpoint) naming the array that
  /// does not fit, before anything changes.
  void load_errors(ConstView worker, ConstView server);
  /// Sets the residuals like load_errors(), without a copy.
  void take_errors(Buffer&& worker, Buffer&& server);
  /// Gives away the residuals, the worker's and the server's. Only the
  /// destructor may be called after it.
  [[nodiscard]] std::pair<Buffer, Buffer> release_errors();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire::exchange
