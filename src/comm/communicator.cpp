// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/communicator.h"

#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "comm/arguments.h"
#include "comm/collectives.h"
#include "comm/completion.h"
#include "comm/queue.h"
#include "thinwire/core/error.h"

namespace thinwire::comm {
namespace {

std::unique_ptr<Transport> require_valid(std::unique_ptr<Transport> transport,
                                         const CommunicatorOptions& options) {
  if (!transport) {
    throw Error(ErrorCode::kInvalidArgument,
                "Communicator: transport must not be null");
  }
  if (options.timeout <= std::chrono::milliseconds::zero()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("CommunicatorOptions: timeout must be > 0, got {} "
                            "ms",
                            options.timeout.count()));
  }
  return transport;
}

}  // namespace

struct Communicator::Impl {
  Impl(std::unique_ptr<Transport> owned, const CommunicatorOptions& chosen)
      : transport(require_valid(std::move(owned), chosen)),
        options(chosen),
        rank(transport->rank()),
        size(transport->size()),
        collectives(*transport, options),
        queue([this](const std::string& text) { transport->give_up(text); }) {}

  ~Impl() {
    // The caller is not coming back: peers must not wait for their time-out,
    // nor this destructor for them.
    if (std::uncaught_exceptions() > exceptions_before)
      give_up("its communicator was destroyed by an exception");
  }

  void give_up(const std::string& reason) {
    queue.cancel(reason);
    transport->give_up(reason);
  }

  /// `payload` counts what this rank sends to others.
  Work start(std::string_view name, std::size_t payload,
             std::function<void()> run) {
    Work work;
    if (size == 1) {
      run();
    } else {
      work.state_ = std::make_shared<Work::State>(std::string(name));
      queue.push(work.state_, std::move(run));
    }
    bytes_sent.fetch_add(payload, std::memory_order_relaxed);
    calls.fetch_add(1, std::memory_order_relaxed);
    return work;
  }

  [[nodiscard]] std::size_t peers() const {
    return static_cast<std::size_t>(size - 1);
  }
  [[nodiscard]] std::size_t self() const {
    return static_cast<std::size_t>(rank);
  }

  Work start_reduce_scatter(ConstView input, std::vector<Range> pieces,
                            View output, ReduceOp op);
  Work start_all_gather(ConstView input, View output,
                        std::vector<Range> places);
  Work start_all_to_all(ConstView input, std::vector<Range> sent, View output,
                        std::vector<Range> received);

  const std::unique_ptr<Transport> transport;
  const CommunicatorOptions options;
  const int rank;
  const int size;
  const int exceptions_before = std::uncaught_exceptions();
  std::atomic<std::uint64_t> bytes_sent = 0;
  std::atomic<std::uint64_t> calls = 0;
  Collectives collectives;
  Queue queue;  // last: its thread uses all of the above
};

Communicator::Communicator(std::unique_ptr<Transport> transport,
                           const CommunicatorOptions& options)
    : impl_(std::make_unique<Impl>(std::move(transport), options)) {}

Communicator::~Communicator() = default;

int Communicator::rank() const noexcept { return impl_->rank; }
int Communicator::size() const noexcept { return impl_->size; }
std::string_view Communicator::backend() const noexcept {
  return impl_->transport->name();
}
std::chrono::milliseconds Communicator::timeout() const noexcept {
  return impl_->options.timeout;
}
Counters Communicator::counters() const noexcept {
  return {.bytes_sent = impl_->bytes_sent.load(std::memory_order_relaxed),
          .collectives = impl_->calls.load(std::memory_order_relaxed)};
}

void Communicator::all_reduce(View data, ReduceOp op) {
  queue_all_reduce(data, op).wait();
}

Work Communicator::queue_all_reduce(View data, ReduceOp op) {
  constexpr std::string_view kCall = "all_reduce";
  arguments::require_memory(kCall, "data", data);
  arguments::require_reducible(kCall, op, data.dtype());
  const std::size_t own = equal_ranges(data.size(), size())[impl_->self()].size;
  const std::size_t elements = data.size() - own + impl_->peers() * own;
  return impl_->start(kCall, elements * size_of(data.dtype()),
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
  const std::size_t elements = input.size() - own.size;
  return start(kCall, elements * size_of(input.dtype()),
               [=, this, pieces = std::move(pieces)] {
                 collectives.reduce_scatter(input, pieces, output, op);
               });
}

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

Work Communicator::Impl::start_all_gather(ConstView input, View output,
                                          std::vector<Range> places) {
  constexpr std::string_view kCall = "all_gather";
  arguments::require_memory(kCall, "input", input);
  arguments::require_memory(kCall, "output", output);
  arguments::require_same_dtype(kCall, input, output);
  const View own = output.subview(places[self()].offset, places[self()].size);
  if (input.data() != own.data())
    arguments::require_no_overlap(kCall, input, output);
  return start(kCall, peers() * input.bytes(),
               [=, this, places = std::move(places)] {
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
  const std::size_t elements = input.size() - sent[self()].size;
  return start(
      kCall, elements * size_of(input.dtype()),
      [=, this, sent = std::move(sent), received = std::move(received)] {
        collectives.all_to_all(input, sent, output, received);
      });
}

void Communicator::broadcast(View data, int root) {
  queue_broadcast(data, root).wait();
}

Work Communicator::queue_broadcast(View data, int root) {
  constexpr std::string_view kCall = "broadcast";
  arguments::require_memory(kCall, "data", data);
  if (root < 0 || root >= size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: root must be in [0, {}), got {}", kCall,
                            size(), root));
  }
  const std::size_t payload =
      rank() == root ? impl_->peers() * data.bytes() : 0;
  return impl_->start(kCall, payload,
                      [=, this] { impl_->collectives.broadcast(data, root); });
}

void Communicator::barrier() {
  impl_->start("barrier", 0, [this] { impl_->collectives.barrier(); }).wait();
}

void Communicator::finish_queued() {
  if (size() == 1) return;
  const auto end = std::make_shared<Completion>("finish_queued");
  impl_->queue.push(end, [] {});
  end->wait();
}

void Communicator::give_up(std::string_view reason) noexcept {
  if (size() > 1) impl_->give_up(std::string(reason));
}

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  std::unique_ptr<Transport> part;
  impl_->start("split", 0, [&] { part = impl_->collectives.split(color, key); })
      .wait();
  if (!part) return nullptr;
  return std::make_unique<Communicator>(std::move(part), impl_->options);
}

}  // namespace thinwire::comm
