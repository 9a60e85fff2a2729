// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "exchange/ready_ranges.h"
#include "exchange/wait_meter.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"

/// Averages of gradients that travel exactly.
namespace thinwire::exchange {

/// Bits of a gradient's element in an exact exchange, for bucket_elements().
inline constexpr int kExactBits = 32;

/// Queues the all-reduce of each range of `values` in buckets: the sum in rank
/// order of fp32, the mean of 16-bit values, which their sum may overflow.
/// Collective, queued.
[[nodiscard]] std::vector<comm::Work> queue_sums(comm::Communicator& comm,
                                                 View values,
                                                 std::span<const Range> ranges,
                                                 std::size_t bucket_elements);
/// Returns the divisor that makes the result a mean.
[[nodiscard]] double sum_divisor(const comm::Communicator& comm, DType dtype);

/// Averages the gradients of one step after another. Parts of them may be in
/// flight before the step.
class ExactAverage {
 public:
  ExactAverage(comm::Communicator& comm, ThreadPool& pool, std::size_t size,
               std::size_t bucket_elements);
  /// Blocks until nothing is in flight: the gradients may be freed after it.
  ~ExactAverage();
  ExactAverage(const ExactAverage&) = delete;
  ExactAverage& operator=(const ExactAverage&) = delete;

  /// Begins with elements `range` of the gradients, which begins and ends on
  /// the grid of sums (kernels::kSumChunk) or ends with the array. Throws
  /// Error(kInvalidArgument) otherwise. Collective, queued.
  void begin_early(View grads, Range range);
  [[nodiscard]] bool has_begun() const noexcept { return !begun_.empty(); }

  /// Returns the sum of squares of this rank's own gradients, even if some of
  /// them have been replaced since begin_early().
  [[nodiscard]] double local_squares(ConstView grads);
  /// Computes the part of that sum for `range`, as in begin_early(). It counts
  /// until the next local_squares() or forget_early(). Local.
  void measure_early(ConstView grads, Range range);
  void forget_early() noexcept { measured_.clear(); }
  /// Returns the sums by chunk (kernels/norm.h) of the last local_squares().
  [[nodiscard]] std::span<const double> chunk_squares() const noexcept {
    return chunk_squares_;
  }
  /// Replaces all gradients by what queue_sums() computes. Collective.
  void complete(View grads, WaitMeter& meter);
  /// Blocks until nothing is in flight, for a step that is not taken.
  void abandon(WaitMeter& meter);

 private:
  struct Begun {
    Range range;
    std::vector<comm::Work> works;
  };
  void require_on_grid(Range range) const;
  void sum_chunks_of(ConstView grads, Range range);

  comm::Communicator& comm_;
  ThreadPool& pool_;
  std::size_t size_;
  std::size_t bucket_elements_;
  std::vector<Begun> begun_;
  ReadyRanges measured_;
  std::vector<double> chunk_squares_;
};

}  // namespace thinwire::exchange
