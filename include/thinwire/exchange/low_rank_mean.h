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
  int low_rank = 8;  ///< Largest number of columns of a factor, in [1, 64].
  /// Number of first passes, >= 0, that average in `first_bits` bits.
  std::int64_t first_steps = 20;
  int first_bits = 4;  ///< 4 or 8.

  /// Throws Error(kInvalidArgument) naming the option, its range and its value.
  void validate() const;

  bool operator==(const LowRankMeanOptions&) const = default;
};

/// A parameter as a matrix: its first dimension, and the product of the others.
/// A parameter with fewer dimensions, or one that must not be factored, has one
/// column.
struct MatrixShape {
  std::size_t rows = 0;
  std::size_t columns = 1;

  [[nodiscard]] std::size_t size() const noexcept { return rows * columns; }
  /// Returns r = min(low_rank, rows, columns), or 0 if factors of r columns had
  /// at least half of its elements: 2 r (rows + columns) >= rows * columns.
  [[nodiscard]] std::size_t rank(int low_rank) const noexcept;
  bool operator==(const MatrixShape&) const = default;
};

/// Averages gradients as products of two thin factors, which are sent in 8
/// bits: PowerSGD (arXiv:1905.13727). Per parameter of a rows and b columns,
/// with the gradient g_k of worker k, the loss scale S and its residual e_k:
///   M_k = g_k / S + e_k
///   P   = mean over 8 bits of M_k Q              a x r; Q of the pass before
///   P   = P with orthonormal columns
///   Q   = mean over 8 bits of transpose(M_k) P   b x r
///   result = P transpose(Q) S;  e_k = M_k - P transpose(Q)
/// Departures from the paper: factors are sent in 8 bits in both directions, in
/// blocks of 64 rows of one column. Parameters without factors are sent in 8
/// bits as in LowBitMean. The first passes average in 4 or 8 bits, and their
/// residuals are added to e. Every sum has a fixed order, so results are the
/// same bits on all ranks, for any number of threads and any division into
/// parts.
///
/// A column of P that is 0 stays 0. The same column of the next Q is drawn by a
/// generator whose state belongs to the parameter. Columns of Q are scaled by
/// powers of two, so that products neither overflow nor underflow.
class LowRankMean {
 public:
  /// Creates the average. Local. The arguments are those of LowBitMean. Throws
  /// Error(kInvalidArgument) if an option is out of range, or if `groups` does
  /// not belong to `comm`. Holds 8 bytes per element for residuals and
  /// matrices, 4/W for the servers of the first passes, and the factors.
  LowRankMean(comm::Communicator& comm, ThreadPool& pool,
              std::span<const MatrixShape> shapes,
              const LowRankMeanOptions& options,
              const comm::HostGroups* groups = nullptr);
  ~LowRankMean();

  using Part = UnitPart;

  /// Performs LowBitMean::begin(), except that up to five parts are in flight.
  /// A pass ends when a unit is averaged again. It counts as one of the first
  /// steps if all its averages were finite. A part that is not finite changes
  /// neither residuals nor factors.
  std::vector<bool> begin(const Part& part);
  std::vector<bool> finish();
  bool average(const Part& part);

  /// Returns the number of bytes that this rank sends to other hosts (to other
  /// ranks if flat) in the next pass.
  [[nodiscard]] std::size_t bytes_per_pass() const;
  /// Returns the time spent waiting for other ranks since construction.
  [[nodiscard]] double wait_seconds() const;

  // ---- the state between passes
  /// Returns a copy of the residual e of all elements, in fp32. In a
  /// hierarchical exchange it is 0 for elements whose residual another rank of
  /// the host has.
  [[nodiscard]] Buffer worker_error() const;
  /// Performs LowBitMean::server_error().
  [[nodiscard]] Buffer server_error() const;
  /// Returns the factors Q of all parameters, one after the other and column by
  /// column. They are fp32 and equal on all ranks.
  [[nodiscard]] ConstView factors() const noexcept;
  /// Returns the states of the random generators, one per parameter with
  /// factors. They are equal on all ranks.
  [[nodiscard]] std::span<const std::uint64_t> generators() const noexcept;
  /// Returns the number of finite first passes so far, at most first_steps.
  [[nodiscard]] std::int64_t passes() const noexcept;
  /// Results of the functions above.
  struct Saved {
    ConstView worker;
    ConstView server;
    ConstView factors;
    std::span<const std::uint64_t> generators;
    std::int64_t passes = 0;
  };
  /// Sets the state. Local. Throws Error(kCorruptCheckpoint) with the array
  /// that does not fit, before anything changes, and Error(kFailedPrecondition)
  /// while a part is in flight.
  void load(const Saved& saved);

 private:
  std::unique_ptr<LowRankSteps> steps_;
};

}  // namespace thinwire::exchange
