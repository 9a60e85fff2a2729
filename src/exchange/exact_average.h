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

/// Uncompressed averages of gradients.
namespace thinwire::exchange {

/// Number of bits per element in an exact exchange, for bucket_elements().
inline constexpr int kExactBits = 32;

/// Queues the all-reduce of each range of `values` in buckets. fp32 values are
/// summed in rank order. 16-bit values are averaged, because their sum may
/// overflow. Collective, queued.
[[nodiscard]] std::vector<comm::Work> queue_sums(comm::Communicator& comm,
                                                 View values,
                                                 std::span<const Range> ranges,
                                                 std::size_t bucket_elements);
/// Returns the divisor that turns the result of queue_sums() into a mean.
[[nodiscard]] double sum_divisor(const comm::Communicator& comm, DType dtype);

/// Averages the gradients of successive steps. Parts of the gradients may be in
/// flight before the step.
class ExactAverage {
 public:
  ExactAverage(comm::Communicator& comm, ThreadPool& pool, std::size_t size,
               std::size_t bucket_elements);
  /// Blocks until nothing is in flight. Afterwards the caller may free the
  /// gradients.
  ~ExactAverage();
  ExactAverage(const ExactAverage&) = delete;
  ExactAverage& operator=(const ExactAverage&) = delete;

  /// Starts averaging elements `range` of the gradients. Throws
  /// Error(kInvalidArgument) unless both ends are on the grid of sums
  /// (kernels::kSumChunk) or at the array's end. Collective, queued.
  void begin_early(View grads, Range range);
  [[nodiscard]] bool has_begun() const noexcept { return !begun_.empty(); }

  /// Returns the sum of squares of this rank's own gradients, even if
  /// begin_early() has already overwritten some of them.
  [[nodiscard]] double local_squares(ConstView grads);
  /// Computes the part of local_squares() for `range`, which is restricted as
  /// in begin_early(). The result is used until the next local_squares() or
  /// forget_early(). Local.
  void measure_early(ConstView grads, Range range);
  void forget_early() noexcept { measured_.clear(); }
  /// Returns the sums per chunk (kernels/norm.h) from the last local_squares().
  [[nodiscard]] std::span<const double> chunk_squares() const noexcept {
    return chunk_squares_;
  }
  /// Replaces all gradients with the results of queue_sums(). Collective.
  void complete(View grads, WaitMeter& meter);
  /// Blocks until nothing is in flight, because the step is abandoned.
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
