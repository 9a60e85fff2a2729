// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/unit_part.h"

namespace thinwire::exchange {

class LowBitUnits;
class UnitResiduals;

struct LowBitMeanOptions {
  int bits = 8;  ///< 4 or 8 bits per element in each direction.
  /// Dtype of the residuals: kFloat32 or kBFloat16. With kBFloat16 they are
  /// rounded to nearest, and the remainder is lost.
  DType residual_dtype = DType::kFloat32;
};

/// Averages gradients in 4 or 8 bits with error feedback, in parts that the
/// caller may vary for each pass. Per block, with r = 1 / loss scale, the
/// worker's residual e, the server's residual d, integers q and the scale s:
///   worker   c = g * r + e;  (q, s) = quantize(c);  e = c - s q
///            all-to-all: every block's (q, s) to its server
///   server   c = mean over ranks of s q, in rank order;  c = c + d;
///            (q, s) = quantize(c);  d = c - s q;  all-gather (q, s)
///   result   s q * loss scale, the same bits on every rank
/// Units (parameters) are adjacent in a flat array. A block has at most 1024
/// elements of one unit. The rank at place k mod W serves the k-th block of the
/// array; in a flat exchange, the place is the rank. Residuals and results
/// therefore do not depend on the parts. In a hierarchical exchange, hosts are
/// the workers, and g is the mean of a host's ranks, computed in fp32.
class LowBitMean {
 public:
  /// Divides units of these sizes into blocks. Local. `groups` belongs to
  /// `comm`, or is null if hosts are flat; both, and `pool`, must outlive this
  /// object. Throws Error(kInvalidArgument) if an option is out of range, or if
  /// `groups` does not belong to `comm`. Holds these bytes per element:
  ///   4 or 2       worker residual
  ///   4/W or 2/W   server residual
  ///   bits / 8     records
  /// and new residuals for up to three parts in flight, each in a buffer as
  /// large as the largest part that has used it. A hierarchical exchange needs
  /// 4 more bytes per element of the largest part.
  LowBitMean(comm::Communicator& comm, ThreadPool& pool,
             std::span<const std::size_t> sizes,
             const LowBitMeanOptions& options,
             const comm::HostGroups* groups = nullptr);
  ~LowBitMean();

  using Part = UnitPart;

  /// Begins to replace the part's values with their average. Completes the part
  /// that was begun two calls before, so up to three are in flight. Collective,
  /// queued: all ranks must pass the same parts in the same order. The values
  /// must exist until their part has completed.
  ///
  /// Returns, for each part that this call completes, whether its average is
  /// finite. If it is not, all values become NaN and no residual changes, on
  /// all ranks. If it is finite, values beyond the range of their dtype become
  /// its largest finite value. A single rank changes nothing and completes each
  /// part at once, with true.
  ///
  /// Throws Error(kInvalidArgument) before anything is sent if the part is
  /// invalid or one of its units is in flight. After any other error nothing is
  /// in flight.
  std::vector<bool> begin(const Part& part);
  /// Completes all parts that are in flight. Collective and blocking. Returns
  /// and throws as begin() does.
  std::vector<bool> finish();
  /// Performs begin() and finish() for one part. Collective and blocking. Also
  /// throws Error(kFailedPrecondition) while another part is in flight.
  bool average(const Part& part);

  /// Returns the number of bytes that this rank sends to other hosts (to other
  /// ranks if flat) if each unit is averaged once.
  [[nodiscard]] std::size_t bytes_per_pass() const noexcept;
  /// Returns the time spent waiting for other ranks since construction.
  [[nodiscard]] double wait_seconds() const noexcept;

  /// Returns the worker residual of all elements. In a hierarchical exchange it
  /// is 0 for elements that another rank of the host encodes.
  [[nodiscard]] ConstView worker_error() const noexcept;
  /// Returns a copy of the server residual of all elements. It is 0 for
  /// elements that another rank serves.
  [[nodiscard]] Buffer server_error() const;
  /// Returns the elements that this rank encodes and for which it has the
  /// worker residual; all elements if flat. Ranges are sorted and not adjacent.
  [[nodiscard]] std::vector<Range> encoded() const;
  /// Returns the elements that this rank serves, as sorted ranges.
  [[nodiscard]] std::vector<Range> served() const;
  /// Sets the residuals. Both arrays have all elements, in the residuals'
  /// dtype. A rank uses only the elements that it encodes or serves. Local.
  /// Throws Error(kCorruptCheckpoint) with the array that does not fit, and
  /// Error(kFailedPrecondition) while a part is in flight.
  void load_errors(ConstView worker, ConstView server);

 private:
  std::unique_ptr<UnitResiduals> residuals_;
  std::unique_ptr<LowBitUnits> units_;
};

}  // namespace thinwire::exchange
