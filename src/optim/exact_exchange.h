// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"

/// What exact steps of every optimizer are made of.
namespace thinwire::optim {

/// Neighbouring parameters of one group.
struct GroupRange {
  Range range;
  std::size_t group = 0;
};

/// The layout as the fewest such ranges, in order, empty ones left out.
[[nodiscard]] std::vector<GroupRange> group_ranges(
    const ParameterLayout& layout);
/// Elements `part` of it, likewise.
[[nodiscard]] std::vector<GroupRange> group_ranges(
    const ParameterLayout& layout, Range part);

/// Calls body(range, group) for pieces that cover `ranges`, shared out over the
/// pool's threads.
void for_group_ranges(ThreadPool& pool, std::span<const GroupRange> ranges,
                      const std::function<void(Range, std::size_t)>& body);

/// The part of an array that may be empty as a whole.
[[nodiscard]] inline View part_of(View array, Range range) {
  return array.empty() ? array : array.subview(range.offset, range.size);
}
[[nodiscard]] inline UpdateArrays part_of(const UpdateArrays& arrays,
                                          Range range) {
  return {.params = arrays.params.subview(range.offset, range.size),
          .grads = arrays.grads.subview(range.offset, range.size),
          .grad_scale = arrays.grad_scale,
          .low_precision = part_of(arrays.low_precision, range)};
}

/// What an update rule gets of a step whose gradients are to be multiplied by
/// `grad_scale`.
[[nodiscard]] inline UpdateArrays update_arrays(const StepInput& in,
                                                float grad_scale) {
  return {.params = in.params,
          .grads = in.grads,
          .grad_scale = grad_scale,
          .low_precision = in.low_precision};
}

/// Listener of a step, and how many elements it gets at once, > 0.
struct Buckets {
  std::size_t elements = 0;
  const FinalRange& tell;
};

/// Applies a step to all parameters. If `tell` is set and the rule takes parts,
/// applies bucket after bucket, and passes each to `tell`.
void apply_by_bucket(UpdateRule& rule, std::int64_t step,
                     const UpdateArrays& arrays, ThreadPool& pool,
                     const Buckets& buckets);

/// One sum per chunk of the grid (kernels/norm.h), on which `values` begins.
void chunk_sums_of_squares(ThreadPool& pool, ConstView values,
                           std::span<double> sums);
/// Sum of squares in the fixed order of kernels/norm.h, whatever the threads.
[[nodiscard]] double sum_of_squares(ThreadPool& pool, ConstView values);
/// Sum of absolute values, likewise.
[[nodiscard]] double sum_of_abs(ThreadPool& pool, ConstView values);

/// The norm of the whole model's gradient, of which `norm` is this optimizer's.
[[nodiscard]] inline double whole_norm(const StepInput& in, double norm) {
  return in.whole_norm ? in.whole_norm(norm) : norm;
}
/// Instead of it, where a gradient is not finite and the step is skipped.
inline void tell_of_nonfinite(const StepInput& in) {
  static_cast<void>(whole_norm(in, std::numeric_limits<double>::infinity()));
}

/// Queues the all-reduce of each range of `values` in buckets: the sum in rank
/// order of fp32, the mean of 16-bit values, which their sum may overflow. Not
/// waited for.
[[nodiscard]] std::vector<comm::Work> queue_sums(
    comm::Communicator& comm, View values, std::span<const GroupRange> ranges,
    std::size_t bucket_elements);
/// What the result is to be divided by to get the mean.
[[nodiscard]] double sum_divisor(const comm::Communicator& comm, DType dtype);

/// Makes this traffic the report's.
void report_traffic(StepReport& report, const comm::Counters& traffic) noexcept;

/// A step under way: its report, to which the time from construction to the end
/// is added, and what the communicator has sent meanwhile.
class StepMeter {
 public:
  StepMeter(const comm::Communicator& comm, StepReport& report)
      : comm_(comm), report_(report), before_(comm.counters()) {}
  ~StepMeter();
  StepMeter(const StepMeter&) = delete;
  StepMeter& operator=(const StepMeter&) = delete;

  [[nodiscard]] StepReport& report() noexcept { return report_; }

  /// body() waits for other ranks.
  template <class Body>
  void waiting(Body&& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    add_wait(seconds_since(begin));
  }
  void wait_for(std::span<const comm::Work> works) {
    waiting([&] {
      for (const comm::Work& work : works) work.wait();
    });
  }
  /// body(exchange) runs a compressed exchange, which times its own waiting.
  template <class Exchange, class Body>
  void compressed(Exchange& exchange, Body&& body) {
    const double before = exchange.wait_seconds();
    body(exchange);
    add_wait(exchange.wait_seconds() - before);
  }

 private:
  void add_wait(double seconds) { report_.exchange_seconds += seconds; }

  static double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         begin)
        .count();
  }

  const comm::Communicator& comm_;
  StepReport& report_;
  comm::Counters before_;
  std::chrono::steady_clock::time_point begin_ =
      std::chrono::steady_clock::now();
};

}  // namespace thinwire::optim
