// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "comm/arguments.h"
#include "comm/communicator_impl.h"

namespace thinwire::comm {

void Communicator::all_reduce(View data, ReduceOp op) {
  queue_all_reduce(data, op).wait();
}

Work Communicator::queue_all_reduce(View data, ReduceOp op) {
  constexpr std::string_view kCall = "all_reduce";
  arguments::require_memory(kCall, "data", data);
  arguments::require_reducible(kCall, op, data.dtype());
  const std::size_t element = size_of(data.dtype());
  const std::size_t sum = size_of(sum_dtype(op, data.dtype()));
  const Cost cost = impl_->routes.of_all_reduce(data.size(), element, sum);
  return impl_->start(kCall, cost,
                      [=, this] { impl_->collectives.all_reduce(data, op); });
}

void Communicator::reduce_scatter(ConstView input, View output, ReduceOp op) {
  queue_reduce_scatter(input, output, op).wait();
}

Work Communicator::queue_reduce_scatter(ConstView input, View output,
                                        ReduceOp op) {
  arguments::require_multiple("reduce_scatter", "input", input.size(), "output",
                              output.size(), size());
  return impl_->start_reduce_scatter(input, equal_ranges(input.size(), size()),
                                     output, op);
}

void Communicator::reduce_scatter(ConstView input, View output,
                                  std::span<const std::size_t> counts,
                                  ReduceOp op) {
  queue_reduce_scatter(input, output, counts, op).wait();
}

Work Communicator::queue_reduce_scatter(ConstView input, View output,
                                        std::span<const std::size_t> counts,
                                        ReduceOp op) {
  arguments::require_counts("reduce_scatter", "counts", counts, size(), "input",
                            input.size());
  arguments::require_equal("reduce_scatter", "output.size()", output.size(),
                           "counts[rank()]", counts[impl_->self()]);
  return impl_->start_reduce_scatter(input, ranges_of(counts), output, op);
}

Work Communicator::queue_reduce_scatter(ConstView input, View output,
                                        std::span<const Range> pieces,
                                        ReduceOp op) {
  arguments::require_pieces("reduce_scatter", pieces, size(), "input",
                            input.size());
  arguments::require_equal("reduce_scatter", "output.size()", output.size(),
                           "pieces[rank()].size", pieces[impl_->self()].size);
  return impl_->start_reduce_scatter(input, {pieces.begin(), pieces.end()},
                                     output, op);
}

Work Communicator::Impl::start_reduce_scatter(ConstView input,
                                              std::vector<Range> pieces,
                                              View output, ReduceOp op) {
  constexpr std::string_view kCall = "reduce_scatter";
  arguments::require_memory(kCall, "input", input);
  arguments::require_memory(kCall, "output", output);
  arguments::require_reducible(kCall, op, input.dtype());
  arguments::require_same_or_wider(kCall, op, input, output);
  const Range own = pieces[self()];
  const bool in_place =
      input.dtype() == output.dtype() &&
      input.subview(own.offset, own.size).data() == output.data();
  if (!in_place) arguments::require_no_overlap(kCall, input, output);
  const Cost cost = routes.of_reduce_scatter(
      pieces, size_of(input.dtype()), size_of(sum_dtype(op, input.dtype())));
  return start(kCall, cost, [=, this, pieces = std::move(pieces)] {
    collectives.reduce_scatter(input, pieces, output, op);
  });
}

}  // namespace thinwire::comm
