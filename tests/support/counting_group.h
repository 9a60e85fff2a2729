// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/failure.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/transport.h"
#include "thinwire/core/error.h"

namespace thinwire::test {

/// Ranks that are threads. Their transports count what collectives pass to
/// them, independently of any formula. Ranks of one host are neighbours.
class CountingGroup {
 public:
  struct Sent {
    std::uint64_t bytes = 0;
    std::uint64_t bytes_between_hosts = 0;
    std::uint64_t messages = 0;
    std::uint64_t rounds = 0;  ///< Exchanges that had messages.
  };

  /// Unless `splits`, there are no other groups than that of all ranks.
  explicit CountingGroup(int size, int ranks_per_host = 1, bool splits = true)
      : size_(size),
        ranks_per_host_(ranks_per_host),
        splits_(splits),
        sent_(static_cast<std::size_t>(size)) {}

  /// Calls body(communicator) for every rank, each on its own thread.
  template <class Body>
  void run(Body&& body, const comm::CommunicatorOptions& options = {}) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank)
      threads.emplace_back([&, rank] {
        std::vector<int> all;
        for (int r = 0; r < size_; ++r) all.push_back(r);
        comm::Communicator comm(
            std::make_unique<Member>(*this, 0, rank, std::move(all)), options);
        body(comm);
      });
    for (std::thread& thread : threads) thread.join();
  }

  /// Called by each rank before each exchange, with its number, if set.
  std::function<void(std::uint64_t)> before_exchange{};

  /// Returns the traffic that this rank has sent so far, in all groups.
  [[nodiscard]] Sent sent_by(int rank) {
    const std::lock_guard lock(mutex_);
    return sent_[static_cast<std::size_t>(rank)];
  }

 private:
  using Key =
      std::tuple<int, int, int, std::uint64_t>;  // group, from, to, step

  // `members` are numbers of threads.
  class Member final : public comm::Transport {
   public:
    Member(CountingGroup& group, int id, int rank, std::vector<int> members)
        : group_(group), id_(id), rank_(rank), members_(std::move(members)) {}

    [[nodiscard]] std::string_view name() const noexcept override {
      return "counting";
    }
    [[nodiscard]] int rank() const noexcept override { return rank_; }
    [[nodiscard]] int size() const noexcept override {
      return static_cast<int>(members_.size());
    }
    void exchange(std::span<const comm::SendMessage> sends,
                  std::span<const comm::RecvMessage> receives,
                  const comm::Operation& operation) override {
      if (group_.before_exchange) group_.before_exchange(operation.sequence);
      group_.count_round(number());
      for (const comm::SendMessage& m : sends) {
        const auto* bytes = static_cast<const std::byte*>(m.data);
        group_.post({id_, rank_, m.peer, operation.sequence},
                    {bytes, bytes + m.bytes});
        group_.count(number(), members_[static_cast<std::size_t>(m.peer)],
                     m.bytes);
      }
      for (const comm::RecvMessage& m : receives) {
        const auto bytes =
            group_.take({id_, m.peer, rank_, operation.sequence}, operation);
        if (bytes.size() != m.bytes)
          throw Error(ErrorCode::kCommFailure, "a message of another size");
        std::memcpy(m.data, bytes.data(), m.bytes);
      }
    }
    // All ranks tell each other their color and key.
    std::unique_ptr<comm::Transport> split(
        int color, int key, const comm::Operation& operation) override {
      if (!group_.splits_)
        throw Error(ErrorCode::kUnavailable, "split: there are no groups");
      const int own[2] = {color, key};
      const auto* bytes = reinterpret_cast<const std::byte*>(own);
      for (int peer = 0; peer < size(); ++peer)
        group_.post({id_, rank_, peer, operation.sequence},
                    {bytes, bytes + sizeof own});
      std::vector<std::pair<int, int>> same;  // key, rank in this group
      for (int peer = 0; peer < size(); ++peer) {
        const auto theirs =
            group_.take({id_, peer, rank_, operation.sequence}, operation);
        int its[2];
        std::memcpy(its, theirs.data(), sizeof its);
        if (its[0] == color) same.emplace_back(its[1], peer);
      }
      if (color < 0) return nullptr;
      std::sort(same.begin(), same.end());
      std::vector<int> members;
      int rank = 0;
      for (const auto& [unused, peer] : same) {
        if (peer == rank_) rank = static_cast<int>(members.size());
        members.push_back(members_[static_cast<std::size_t>(peer)]);
      }
      return std::make_unique<Member>(
          group_, group_.id_of(members, operation.sequence, id_), rank,
          members);
    }
    void give_up(std::string_view reason) noexcept override {
      group_.fail(reason);
    }

   private:
    [[nodiscard]] int number() const {
      return members_[static_cast<std::size_t>(rank_)];
    }

    CountingGroup& group_;
    int id_;
    int rank_;
    std::vector<int> members_;
  };

  void count(int from, int to, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    Sent& sent = sent_[static_cast<std::size_t>(from)];
    sent.bytes += bytes;
    if (from / ranks_per_host_ != to / ranks_per_host_)
      sent.bytes_between_hosts += bytes;
    ++sent.messages;
  }
  void count_round(int rank) {
    const std::lock_guard lock(mutex_);
    ++sent_[static_cast<std::size_t>(rank)].rounds;
  }
  void post(const Key& key, std::vector<std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    boxes_[key] = std::move(bytes);
    arrived_.notify_all();
  }
  std::vector<std::byte> take(const Key& key,
                              const comm::Operation& operation) {
    std::unique_lock lock(mutex_);
    arrived_.wait_until(lock, operation.deadline,
                        [&] { return given_up_ || boxes_.count(key) > 0; });
    const auto box = boxes_.find(key);
    if (box == boxes_.end())
      throw Error(ErrorCode::kCommFailure,
                  comm::failure::gave_up(operation, std::get<1>(key),
                                         given_up_.value_or("timed out")));
    std::vector<std::byte> bytes = std::move(box->second);
    boxes_.erase(box);
    return bytes;
  }
  void fail(std::string_view reason) noexcept {
    const std::lock_guard lock(mutex_);
    if (!given_up_) given_up_ = reason;
    arrived_.notify_all();
  }
  // Returns an id that is the same for all members of a group that is split
  // off.
  int id_of(const std::vector<int>& members, std::uint64_t sequence, int of) {
    const std::lock_guard lock(mutex_);
    const auto [at, unused] = ids_.try_emplace(
        {of, sequence, members}, static_cast<int>(ids_.size()) + 1);
    return at->second;
  }

  const int size_;
  const int ranks_per_host_;
  const bool splits_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<Key, std::vector<std::byte>> boxes_;
  std::map<std::tuple<int, std::uint64_t, std::vector<int>>, int> ids_;
  std::vector<Sent> sent_;
  std::optional<std::string> given_up_;  // why
};

}  // namespace thinwire::test
