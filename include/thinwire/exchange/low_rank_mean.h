// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/unit_part.h"

namespace thinwire::exchange {

class LowRankSteps;

struct LowRankMeanOptions {
  int low_rank = 8;  ///< Most columns of a factor, in [1, 64].
  /// The number of first passes that average in `first_bits` bits, >= 0.
  std::int64_t first_steps = 20;
  int first_bits = 4;  ///< 4 or 8.

  /// Throws Error(kInvalidArgument) naming the option, its range and its value.
  void validate() const;

  bool operator==(const LowRankMeanOptions&) const = default;
};

/// A parameter as a matrix: its first dimension, and the product of the others.
/// One with fewer dimensions, or which is not to be factored, has one column.
struct MatrixShape {
  std::size_t rows = 0;
  std::size_t columns = 1;

  [[nodiscard]] std::size_t size() const noexcept { return rows * columns; }
  /// Returns r = min(low_rank, rows, columns), or 0 if factors of r columns
  /// have half as many elements or more: 2 r (rows + columns) >= rows *
  /// columns.
  [[nodiscard]] std::size_t rank(int low_rank) const noexcept;
  bool operator==(const MatrixShape&) const = default;
};

/// Averages gradients as products of two thin factors, which travel in 8 bits:
/// PowerSGD (arXiv:1905.13727). Per parameter of a rows and b columns, with
/// the gradient g_k of worker k, the loss scale S and its residual e_k:
///
///   M_k = g_k / S + e_k
///   P   = mean over 8 bits of M_k Q              a x r; Q of the pass before
///   P   = P with orthonormal columns
///   Q   = mean over 8 bits of transpose(M_k) P   b x r
///   result = P transpose(Q) S;  e_k = M_k - P transpose(Q)
///
/// Departures from the paper: factors travel in 8 bits both ways, in blocks of
/// 64 rows of one column. So do parameters without factors, as in LowBitMean.
/// The first passes average in 4 or 8 bits, and their residuals are added to e.
/// Every sum has a fixed order, so results are the same bits on all ranks, for
/// any number of threads and any division into parts.
///
/// A column of P that is 0 stays 0. The same column of the next Q is drawn by a
/// generator whose state belongs to the parameter. Columns of Q are kept
/// multiplied by a power of two, so that products neither overflow nor vanish.
class LowRankMean {
 public:
  /// Local. The arguments are those of LowBitMean. Throws
  /// Error(kInvalidArgument) if an option is out of range, or if `groups` does
  /// not belong to `comm`. Holds these bytes per element: 8 of residuals and
  /// matrices, those of the factors, and 4/W of the servers of the first
  /// passes.
  LowRankMean(comm::Communicator& comm, ThreadPool& pool,
              std::span<const MatrixShape> shapes,
              const LowRankMeanOptions& options,
              const comm::HostGroups* groups = nullptr);
  ~LowRankMean();

  using Part = UnitPart;

  /// Does what LowBitMean::begin() does, except that up to five parts are in
  /// flight. A pass ends when a unit is averaged again. It counts as one of the
  /// first steps if all its averages were finite. A part that is not finite
  /// changes neither residuals nor factors.
  std::vector<bool> begin(const Part& part);
  std::vector<bool> finish();
  bool average(const Part& part);

  /// Returns the bytes that this rank sends in one pass, as the next one will
  /// be. Counts bytes to other hosts or, if hosts are flat, to other ranks.
  [[nodiscard]] std::size_t bytes_per_pass() const;
  /// Returns the time spent waiting for other ranks since construction.
  [[nodiscard]] double wait_seconds() const;

  // ---- the state between passes
  /// Returns a copy of the residual e of all elements, fp32. In a hierarchical
  /// exchange it is 0 where another rank of the host has it.
  [[nodiscard]] Buffer worker_error() const;
  /// Does what LowBitMean::server_error() does.
  [[nodiscard]] Buffer server_error() const;
  /// Returns the factors Q of all parameters, one after the other, column by
  /// column; fp32, the same on all ranks.
  [[nodiscard]] ConstView factors() const noexcept;
  /// Returns the generators' states, one per parameter that has factors. The
  /// same on all ranks.
  [[nodiscard]] std::span<const std::uint64_t> generators() const noexcept;
  /// Returns the number of finite passes so far, which first_steps counts.
  [[nodiscard]] std::int64_t passes() const noexcept;
  /// The results of these functions.
  struct Saved {
    ConstView worker;
    ConstView server;
    ConstView factors;
    std::span<const std::uint64_t> generators;
    std::int64_t passes = 0;
  };
  /// Sets the state. Local. Throws Error(kCorruptCheckpoint) naming what does
  /// not fit, before anything changes, and Error(kFailedPrecondition) while a
  /// part is in flight.
  void load(const Saved& saved);

 private:
  std::unique_ptr<LowRankSteps> steps_;
};

}  // namespace thinwire::exchange
