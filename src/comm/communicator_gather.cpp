// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "comm/arguments.h"
#include "comm/communicator_impl.h"

namespace thinwire::comm {

void Communicator::all_gather(ConstView input, View output) {
  queue_all_gather(input, output).wait();
}

Work Communicator::queue_all_gather(ConstView input, View output) {
  arguments::require_multiple("all_gather", "output", output.size(), "input",
                              input.size(), size());
  return impl_->start_all_gather(input, output,
                                 equal_ranges(output.size(), size()));
}

void Communicator::all_gather(ConstView input, View output,
                              std::span<const std::size_t> counts) {
  queue_all_gather(input, output, counts).wait();
}

Work Communicator::queue_all_gather(ConstView input, View output,
                                    std::span<const std::size_t> counts) {
  arguments::require_counts("all_gather", "counts", counts, size(), "output",
                            output.size());
  arguments::require_equal("all_gather", "input.size()", input.size(),
                           "counts[rank()]", counts[impl_->self()]);
  return impl_->start_all_gather(input, output, ranges_of(counts));
}

Work Communicator::queue_all_gather(ConstView input, View output,
                                    std::span<const Range> pieces) {
  arguments::require_pieces("all_gather", pieces, size(), "output",
                            output.size());
  arguments::require_equal("all_gather", "input.size()", input.size(),
                           "pieces[rank()].size", pieces[impl_->self()].size);
  return impl_->start_all_gather(input, output, {pieces.begin(), pieces.end()});
}

Work Communicator::Impl::start_all_gather(ConstView input, View output,
                                          std::vector<Range> places) {
  constexpr std::string_view kCall = "all_gather";
  arguments::require_memory(kCall, "input", input);
  arguments::require_memory(kCall, "output", output);
  arguments::require_same_dtype(kCall, input, output);
  const View own = output.subview(places[self()].offset, places[self()].size);
  if (input.data() != own.data())
    arguments::require_no_overlap(kCall, input, output);
  const Cost cost = routes.of_all_gather(places, size_of(input.dtype()));
  return start(kCall, cost, [=, this, places = std::move(places)] {
    collectives.all_gather(input, output, places);
  });
}

void Communicator::all_to_all(ConstView input, View output) {
  queue_all_to_all(input, output).wait();
}

Work Communicator::queue_all_to_all(ConstView input, View output) {
  constexpr std::string_view kCall = "all_to_all";
  const auto ranks = static_cast<std::size_t>(size());
  arguments::require_multiple(kCall, "input", input.size(), "piece",
                              input.size() / ranks, size());
  arguments::require_equal(kCall, "output.size()", output.size(),
                           "input.size()", input.size());
  return impl_->start_all_to_all(input, equal_ranges(input.size(), size()),
                                 output, equal_ranges(output.size(), size()));
}

void Communicator::all_to_all(ConstView input,
                              std::span<const std::size_t> send_counts,
                              View output,
                              std::span<const std::size_t> receive_counts) {
  queue_all_to_all(input, send_counts, output, receive_counts).wait();
}

Work Communicator::queue_all_to_all(
    ConstView input, std::span<const std::size_t> send_counts, View output,
    std::span<const std::size_t> receive_counts) {
  constexpr std::string_view kCall = "all_to_all";
  arguments::require_counts(kCall, "send_counts", send_counts, size(), "input",
                            input.size());
  arguments::require_counts(kCall, "receive_counts", receive_counts, size(),
                            "output", output.size());
  arguments::require_equal(kCall, "receive_counts[rank()]",
                           receive_counts[impl_->self()], "send_counts[rank()]",
                           send_counts[impl_->self()]);
  return impl_->start_all_to_all(input, ranges_of(send_counts), output,
                                 ranges_of(receive_counts));
}

Work Communicator::Impl::start_all_to_all(ConstView input,
                                          std::vector<Range> sent, View output,
                                          std::vector<Range> received) {
  constexpr std::string_view kCall = "all_to_all";
  arguments::require_memory(kCall, "input", input);
  arguments::require_memory(kCall, "output", output);
  arguments::require_same_dtype(kCall, input, output);
  arguments::require_no_overlap(kCall, input, output);
  const Cost cost = routes.of_all_to_all(sent, size_of(input.dtype()));
  return start(
      kCall, cost,
      [=, this, sent = std::move(sent), received = std::move(received)] {
        collectives.all_to_all(input, sent, output, received);
      });
}

}  // namespace thinwire::comm
