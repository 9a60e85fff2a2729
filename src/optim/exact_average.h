// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "optim/exact_exchange.h"

namespace thinwire::optim {

/// What a gradient's element takes in an exact exchange, for
/// exchange::bucket_elements().
inline constexpr int kExactBits = 32;

/// The exact average of one step's gradients after the other, parts of which
/// may be under way before the step.
class ExactAverage {
 public:
  ExactAverage(comm::Communicator& comm, ThreadPool& pool,
               const ParameterLayout& layout, std::size_t bucket_elements);
  /// Waits for what is under way: its memory may go after this object.
  ~ExactAverage();
  ExactAverage(const ExactAverage&) = delete;
  ExactAverage& operator=(const ExactAverage&) = delete;

  /// Collective, queued. `range` begins and ends on the grid of sums
  /// (kernels::kSumChunk) or with the array; Error(kInvalidArgument) else.
  void begin_early(View grads, Range range);
  [[nodiscard]] bool has_begun() const noexcept { return !begun_.empty(); }

  /// Sum of squares of this rank's own gradients, whatever is under way.
  [[nodiscard]] double local_squares(ConstView grads);
  /// Local: forms the part of that sum that is `range`'s, as above, before the
  /// step; until local_squares() or forget_early(), whichever is first.
  void measure_early(ConstView grads, Range range);
  void forget_early() noexcept { measured_.clear(); }
  /// Its chunks (kernels/norm.h), as local_squares() has found them.
  [[nodiscard]] std::span<const double> chunk_squares() const noexcept {
    return chunk_squares_;
  }
  /// Collective: replaces all gradients by what queue_sums() makes of them.
  void complete(View grads, StepMeter& meter);
  /// Waits for what is under way; the step is not taken.
  void abandon(StepMeter& meter);

 private:
  struct Begun {
    Range range;
    std::vector<comm::Work> works;
  };
  void require_on_grid(Range range) const;
  [[nodiscard]] std::vector<GroupRange> missing(std::vector<Range> done) const;
  [[nodiscard]] std::vector<Range> begun() const;
  void sum_chunks_of(ConstView grads, Range range);

  comm::Communicator& comm_;
  ThreadPool& pool_;
  std::size_t size_;
  std::size_t bucket_elements_;
  std::vector<Begun> begun_;
  std::vector<Range> measured_;
  std::vector<double> chunk_squares_;
};

}  // namespace thinwire::optim
