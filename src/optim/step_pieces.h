// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "exchange/wait_meter.h"
#include "kernels/pooled_norm.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/optim/update_rule.h"

/// Parts of exact steps that all optimizers share.
namespace thinwire::optim {

/// Range of adjacent parameters of one group.
struct GroupRange {
  Range range;
  std::size_t group = 0;
};

/// Returns the layout as the smallest number of such ranges, in order and
/// without empty ones.
[[nodiscard]] std::vector<GroupRange> group_ranges(
    const ParameterLayout& layout);
/// Returns the ranges of elements `part` of the layout.
[[nodiscard]] std::vector<GroupRange> group_ranges(
    const ParameterLayout& layout, Range part);

/// Calls body(range, group) for pieces that cover `ranges`, on the pool's
/// threads.
void for_group_ranges(ThreadPool& pool, std::span<const GroupRange> ranges,
                      const std::function<void(Range, std::size_t)>& body);

/// Returns part of an array, or an empty view if the whole array is empty.
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

/// Returns the arrays of an update rule for a step that multiplies gradients by
/// `grad_scale`.
[[nodiscard]] inline UpdateArrays update_arrays(const StepInput& in,
                                                float grad_scale) {
  return {.params = in.params,
          .grads = in.grads,
          .grad_scale = grad_scale,
          .low_precision = in.low_precision};
}

/// Listener of a step, and the number (> 0) of elements that it receives at
/// once.
struct Buckets {
  std::size_t elements = 0;
  const FinalRange& tell;
};

/// Applies a step to all parameters. If `tell` is set and the rule accepts
/// parts, applies it bucket by bucket and passes each bucket to `tell`.
void apply_by_bucket(UpdateRule& rule, std::int64_t step,
                     const UpdateArrays& arrays, ThreadPool& pool,
                     const Buckets& buckets);

/// Subtracts the parts in `uncounted` from `squares`, the sum of squares of
/// `grads`. The result is not finite if any gradient is not.
[[nodiscard]] double counted(double squares, ConstView grads,
                             std::span<const Range> uncounted,
                             ThreadPool& pool);
/// Returns the sum of squares of a step's gradients that count.
[[nodiscard]] inline double counted_squares(const StepInput& in,
                                            ThreadPool& pool) {
  return counted(kernels::sum_of_squares(pool, in.grads), in.grads,
                 in.uncounted, pool);
}
/// Returns the ranges inside `part`, relative to its beginning.
[[nodiscard]] std::vector<Range> within(std::span<const Range> ranges,
                                        Range part);

/// Returns the norm of the whole model's gradient. `norm` is that of this
/// optimizer's.
[[nodiscard]] inline double whole_norm(const StepInput& in, double norm) {
  return in.whole_norm ? in.whole_norm(norm) : norm;
}
/// Replaces whole_norm() if a gradient is not finite and the step is skipped.
inline void tell_of_nonfinite(const StepInput& in) {
  static_cast<void>(whole_norm(in, std::numeric_limits<double>::infinity()));
}

/// Copies the traffic to the report.
void report_traffic(StepReport& report, const comm::Counters& traffic) noexcept;

/// Measures a step. Adds to its report the time from construction to the end,
/// the waiting time, and the bytes that the communicator has sent in between.
class StepMeter : public exchange::WaitMeter {
 public:
  StepMeter(const comm::Communicator& comm, StepReport& report)
      : WaitMeter(report.exchange_seconds),
        comm_(comm),
        report_(report),
        before_(comm.counters()) {}
  ~StepMeter();
  StepMeter(const StepMeter&) = delete;
  StepMeter& operator=(const StepMeter&) = delete;

  [[nodiscard]] StepReport& report() noexcept { return report_; }

 private:
  const comm::Communicator& comm_;
  StepReport& report_;
  comm::Counters before_;
  std::chrono::steady_clock::time_point begin_ =
      std::chrono::steady_clock::now();
};

}  // namespace thinwire::optim
