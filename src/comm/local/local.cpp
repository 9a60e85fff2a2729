// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/local.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "comm/failure.h"
#include "comm/membership.h"
#include "core/require.h"
#include "thinwire/core/error.h"

namespace thinwire::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Interval at which a waiting rank checks interrupt(), because an interruption
// may not wake the rank.
constexpr auto kInterruptCheck = std::chrono::milliseconds(20);

// A message between two ranks. The memory belongs to the sender, who waits
// until the receiver has copied it.
struct Slot {
  enum class State { kEmpty, kOffered, kBeingCopied };
  State state = State::kEmpty;
  SendMessage message;
  std::string_view operation;
  std::uint64_t sequence = 0;
};

// The reason why a rank no longer takes part.
struct Departure {
  bool gave_up = false;
  std::string reason;
};

// State that the ranks of one group share, guarded by the mutex.
struct Hub {
  explicit Hub(int world_size)
      : size(world_size),
        wake(static_cast<std::size_t>(size)),
        departed(static_cast<std::size_t>(size)),
        slots(static_cast<std::size_t>(size) * static_cast<std::size_t>(size)) {
  }

  Slot& slot(int from, int to) {
    return slots[static_cast<std::size_t>(from * size + to)];
  }
  std::condition_variable& wake_of(int rank) {
    return wake[static_cast<std::size_t>(rank)];
  }
  std::optional<Departure>& departure_of(int rank) {
    return departed[static_cast<std::size_t>(rank)];
  }

  void depart(int rank, Departure departure) {
    const std::lock_guard lock(mutex);
    if (departure_of(rank)) return;
    departure_of(rank) = std::move(departure);
    for (auto& condition : wake) condition.notify_all();
  }

  // The hub of a split group. The first member to arrive creates the hub, and
  // the last one removes this entry.
  struct Child {
    std::shared_ptr<Hub> hub;
    int missing = 0;
  };
  std::shared_ptr<Hub> join_child(std::uint64_t sequence, int color,
                                  int child_size) {
    const std::lock_guard lock(mutex);
    const auto key = std::make_pair(sequence, color);
    Child& child = children[key];
    if (!child.hub) child = {std::make_shared<Hub>(child_size), child_size};
    std::shared_ptr<Hub> hub = child.hub;
    if (--child.missing == 0) children.erase(key);
    return hub;
  }

  const int size;
  std::mutex mutex;
  std::vector<std::condition_variable> wake;  // one per rank
  std::vector<std::optional<Departure>> departed;
  std::vector<Slot> slots;
  std::map<std::pair<std::uint64_t, int>, Child> children;
};

// One rank's part in one exchange.
class Exchange {
 public:
  Exchange(Hub& hub, int rank, const Operation& operation)
      : hub_(hub), rank_(rank), operation_(operation), lock_(hub.mutex) {}

  void run(std::span<const SendMessage> sends,
           std::span<const RecvMessage> receives) {
    sends_.assign(sends.begin(), sends.end());
    receives_.assign(receives.begin(), receives.end());
    try {
      check_departed();
      offer();
      for (;;) {
        take();
        forget_taken();
        if (sends_.empty() && receives_.empty()) return;
        check_departed();
        wait();
      }
    } catch (...) {
      withdraw();
      throw;
    }
  }

 private:
  [[noreturn]] static void fail(const std::string& text) {
    throw Error(ErrorCode::kCommFailure, text);
  }

  void offer() {
    for (const SendMessage& message : sends_) {
      hub_.slot(rank_, message.peer) = {Slot::State::kOffered, message,
                                        operation_.name, operation_.sequence};
      hub_.wake_of(message.peer).notify_one();
      offered_ = true;
    }
  }

  // Copies the messages that peers offer to this rank in this exchange.
  void take() {
    for (int peer = 0; peer < hub_.size; ++peer) {
      Slot& slot = hub_.slot(peer, rank_);
      if (slot.state != Slot::State::kOffered) continue;
      const auto wanted =
          std::find_if(receives_.begin(), receives_.end(),
                       [&](const RecvMessage& r) { return r.peer == peer; });
      const bool expected = wanted != receives_.end();
      // A peer that sends nothing here may already be in a later exchange.
      if (!expected && slot.sequence > operation_.sequence) continue;
      if (slot.sequence != operation_.sequence ||
          slot.operation != operation_.name) {
        fail(failure::other_call(operation_, peer, slot.operation,
                                 slot.sequence));
      }
      const std::size_t bytes = expected ? wanted->bytes : 0;
      if (slot.message.bytes != bytes) {
        fail(failure::wrong_size(operation_, peer, slot.message.bytes, bytes));
      }
      slot.state = Slot::State::kBeingCopied;
      lock_.unlock();
      std::memcpy(wanted->data, slot.message.data, bytes);
      lock_.lock();
      slot.state = Slot::State::kEmpty;
      hub_.wake_of(peer).notify_one();
      receives_.erase(wanted);
    }
  }

  void forget_taken() {
    std::erase_if(sends_, [this](const SendMessage& message) {
      return hub_.slot(rank_, message.peer).state == Slot::State::kEmpty;
    });
  }

  [[nodiscard]] std::vector<int> waited_for() const {
    std::vector<int> peers;
    for (const RecvMessage& message : receives_) peers.push_back(message.peer);
    for (const SendMessage& message : sends_) peers.push_back(message.peer);
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    return peers;
  }

  // A rank leaves only after its peers have taken its offers, so a peer that
  // has left cannot complete this exchange.
  void check_departed() {
    if (const auto& self = hub_.departure_of(rank_))
      fail(failure::this_rank_gave_up(operation_, self->reason));
    for (const int peer : waited_for()) {
      const auto& departure = hub_.departure_of(peer);
      if (!departure) continue;
      fail(departure->gave_up
               ? failure::gave_up(operation_, peer, departure->reason)
               : failure::left(operation_, peer));
    }
    if (const char* reason = interrupted())
      fail(failure::interrupted(operation_, waited_for(), reason));
    if (Clock::now() >= operation_.deadline)
      fail(failure::timed_out(operation_, waited_for()));
  }

  void wait() {
    hub_.wake_of(rank_).wait_until(
        lock_, std::min(operation_.deadline, Clock::now() + kInterruptCheck));
  }

  // Withdraws offers after a failure, so that nobody reads the caller's memory.
  void withdraw() {
    if (!offered_) return;
    for (const SendMessage& message : sends_) {
      Slot& slot = hub_.slot(rank_, message.peer);
      hub_.wake_of(rank_).wait(
          lock_, [&] { return slot.state != Slot::State::kBeingCopied; });
      slot.state = Slot::State::kEmpty;
    }
  }

  Hub& hub_;
  const int rank_;
  const Operation& operation_;
  std::unique_lock<std::mutex> lock_;
  std::vector<SendMessage> sends_;     // not yet read by the peer
  std::vector<RecvMessage> receives_;  // not yet received
  bool offered_ = false;
};

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<Hub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank) {}
  ~LocalTransport() override { hub_->depart(rank_, {}); }
  LocalTransport(const LocalTransport&) = delete;
  LocalTransport& operator=(const LocalTransport&) = delete;

  [[nodiscard]] std::string_view name() const noexcept override {
    return "local";
  }
  [[nodiscard]] int rank() const noexcept override { return rank_; }
  [[nodiscard]] int size() const noexcept override { return hub_->size; }

  void exchange(std::span<const SendMessage> sends,
                std::span<const RecvMessage> receives,
                const Operation& operation) override {
    Exchange(*hub_, rank_, operation).run(sends, receives);
  }

  [[nodiscard]] std::unique_ptr<Transport> split(
      int color, int key, const Operation& operation) override {
    const auto all = gather_values<Membership>(*this, {color, key}, operation);
    if (color < 0) return nullptr;
    const std::vector<int> members = members_of(all, color);
    const auto self = std::find(members.begin(), members.end(), rank_);
    return std::make_unique<LocalTransport>(
        hub_->join_child(operation.sequence, color,
                         static_cast<int>(members.size())),
        static_cast<int>(self - members.begin()));
  }

  void give_up(std::string_view reason) noexcept override {
    hub_->depart(rank_, {.gave_up = true, .reason = std::string(reason)});
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const int rank_;
};

// The earliest exception that a rank threw.
class FirstException {
 public:
  void keep_current() {
    const std::lock_guard lock(mutex_);
    if (!exception_) exception_ = std::current_exception();
  }
  void rethrow() const {
    if (exception_) std::rethrow_exception(exception_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr exception_;
};

std::shared_ptr<Hub> make_hub(int world_size) {
  require(world_size >= 1, "make_local_group: world_size", ">= 1", world_size);
  return std::make_shared<Hub>(world_size);
}

std::unique_ptr<Communicator> make_rank(const std::shared_ptr<Hub>& hub,
                                        int rank,
                                        const CommunicatorOptions& options) {
  return std::make_unique<Communicator>(
      std::make_unique<LocalTransport>(hub, rank), options);
}

// Runs one rank's thread. Tells peers the reason of a failure before the
// communicator is destroyed, because only this function knows the reason.
void run_rank(const std::function<void(Communicator&)>& body,
              std::unique_ptr<Communicator> comm, Hub& hub,
              FirstException& first) {
  const int rank = comm->rank();
  try {
    body(*comm);
  } catch (const std::exception& error) {
    first.keep_current();
    hub.depart(rank, {.gave_up = true, .reason = error.what()});
  } catch (...) {
    first.keep_current();
    hub.depart(rank, {.gave_up = true, .reason = "it threw an exception"});
  }
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_group(
    int world_size, const CommunicatorOptions& options) {
  const std::shared_ptr<Hub> hub = make_hub(world_size);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < world_size; ++rank)
    group.push_back(make_rank(hub, rank, options));
  return group;
}

void run_local_ranks(int world_size,
                     const std::function<void(Communicator&)>& body,
                     const CommunicatorOptions& options) {
  const std::shared_ptr<Hub> hub = make_hub(world_size);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < world_size; ++rank)
    group.push_back(make_rank(hub, rank, options));
  FirstException first;
  std::vector<std::jthread> threads;
  for (auto& comm : group) {
    threads.emplace_back(
        [&body, &hub, &first, own = std::move(comm)]() mutable {
          run_rank(body, std::move(own), *hub, first);
        });
  }
  for (std::jthread& thread : threads) thread.join();
  first.rethrow();
}

}  // namespace thinwire::comm
