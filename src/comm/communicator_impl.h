// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/collectives.h"
#include "comm/completion.h"
#include "comm/queue.h"
#include "comm/routes.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

/// Counts behind Counters, and a pointer to the parent group's counts.
struct Tally {
  std::atomic<std::uint64_t> bytes_sent = 0;
  std::atomic<std::uint64_t> bytes_between = 0;
  std::atomic<std::uint64_t> messages = 0;
  std::atomic<std::uint64_t> busy_nanoseconds = 0;
  std::atomic<std::uint64_t> calls = 0;
  std::shared_ptr<Tally> parent;

  void add_call(const Cost& cost) {
    bytes_sent.fetch_add(cost.bytes_sent(), kRelaxed);
    bytes_between.fetch_add(cost.between_hosts.bytes, kRelaxed);
    messages.fetch_add(cost.messages(), kRelaxed);
    calls.fetch_add(1, kRelaxed);
    if (parent) parent->add_call(cost);
  }
  void add_busy(std::chrono::nanoseconds time) {
    busy_nanoseconds.fetch_add(static_cast<std::uint64_t>(time.count()),
                               kRelaxed);
    if (parent) parent->add_busy(time);
  }

  static constexpr auto kRelaxed = std::memory_order_relaxed;
};

/// Holds the parts of a communicator and queues its collectives on its thread.
struct Communicator::Impl {
  /// Groups that were split from one communicator and still exist.
  struct Parts {
    std::mutex mutex;
    std::vector<Impl*> open;
  };

  Impl(std::unique_ptr<Transport> owned, const CommunicatorOptions& chosen);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ~Impl() {
    // The caller will not call again. Neither should peers wait for their
    // time-out, nor this destructor for them.
    if (std::uncaught_exceptions() > exceptions_before)
      give_up("its communicator was destroyed by an exception");
    if (!whole) return;
    const std::lock_guard lock(whole->mutex);
    std::erase(whole->open, this);
  }

  // Peers may be waiting in any group split from this one.
  void give_up(const std::string& reason) {
    if (size == 1) return;
    queue.cancel(reason);
    transport->give_up(reason);
    const std::lock_guard lock(parts->mutex);
    for (Impl* part : parts->open) part->give_up(reason);
  }

  // Must be called before anybody uses this group.
  void join(const std::shared_ptr<Parts>& parts_of_whole) {
    whole = parts_of_whole;
    const std::lock_guard lock(whole->mutex);
    whole->open.push_back(this);
  }

  Work push(std::string_view name, std::function<void()> run) {
    Work work;
    if (size == 1) {
      run();
    } else {
      work.state_ = std::make_shared<Work::State>(std::string(name));
      queue.push(work.state_, std::move(run));
    }
    return work;
  }

  Work start(std::string_view name, const Cost& cost,
             std::function<void()> run) {
    Work work = push(name, [this, run = std::move(run)] {
      const auto begin = std::chrono::steady_clock::now();
      run();
      if (size > 1) tally->add_busy(std::chrono::steady_clock::now() - begin);
    });
    tally->add_call(cost);
    return work;
  }

  [[nodiscard]] std::size_t self() const {
    return static_cast<std::size_t>(rank);
  }

  std::unique_ptr<Communicator> split(int color, int key,
                                      const CommunicatorOptions& chosen);
  Work start_reduce_scatter(ConstView input, std::vector<Range> pieces,
                            View output, ReduceOp op);
  Work start_all_gather(ConstView input, View output,
                        std::vector<Range> places);
  Work start_all_to_all(ConstView input, std::vector<Range> sent, View output,
                        std::vector<Range> received);

  const std::unique_ptr<Transport> transport;
  const int rank;
  const int size;
  const CommunicatorOptions options;
  const Routes routes;
  const int exceptions_before = std::uncaught_exceptions();
  const std::shared_ptr<Tally> tally = std::make_shared<Tally>();
  const std::shared_ptr<Parts> parts = std::make_shared<Parts>();
  std::shared_ptr<Parts> whole{};  // groups split from the same parent
  Collectives collectives;
  Queue queue;  // last, because its thread uses all members above
};

}  // namespace thinwire::comm
