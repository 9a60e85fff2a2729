// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "thinwire/comm/agreement.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/core/error.h"

namespace thinwire::torch {

/// The ranks of one host, of which the first is the leader. They sum and share
/// tensors of their devices in the device's own process group, such as NCCL's.
/// Other values travel over the communicator.
class HostGroup {
 public:
  /// Collective over `comm`, which must outlive this object. `group` has the
  /// ranks of this host in rank order, and only this object uses it. Its
  /// time-out must be longer than the communicator's. Throws
  /// Error(kInvalidArgument) on all ranks unless there are several hosts with
  /// the same number of ranks, at least two each, and groups that fit them.
  /// Throws Error(kCommFailure) if the group fails.
  HostGroup(comm::Communicator& comm, c10::intrusive_ptr<c10d::Backend> group,
            at::Device device, int ranks_per_host)
      : comm_(comm), group_(std::move(group)) {
    comm::WhyFlat why;
    const comm::Hosts hosts =
        comm::find_hosts(comm, {.ranks_per_host = ranks_per_host}, &why);
    comm::require_everywhere(comm, [&] {
      const auto refuse = [](const std::string& text) {
        throw Error(ErrorCode::kInvalidArgument, "group must be " + text);
      };
      if (!group_) refuse("a process group of the ranks of this host");
      if (hosts.is_flat())
        refuse(
            "one of several hosts with several ranks each, equally many: " +
            (why.text.empty() ? "every rank has a host of its own" : why.text));
      if (group_->getSize() != hosts.ranks_per_host ||
          group_->getRank() != hosts.local_rank)
        refuse("rank " + std::to_string(hosts.local_rank) + " of " +
               std::to_string(hosts.ranks_per_host) +
               ", as on this host, got rank " +
               std::to_string(group_->getRank()) + " of " +
               std::to_string(group_->getSize()));
      if (device.is_cpu())
        refuse("used with a module on a device, got one on the CPU");
    });
    whole_ = comm.by_host(hosts);
    // The time-outs are staggered. A rank that waits inside its host names the
    // lost rank before other hosts miss their leader. These name the leader
    // before followers miss theirs.
    first_ = comm::split_by_host(*whole_);
    parts_ = comm::split_by_host(*whole_, std::chrono::milliseconds(750));
    const c10::DeviceGuard on(device);
    at::Tensor first = at::full({1}, comm.rank(),
                                at::TensorOptions(at::kFloat).device(device));
    broadcast(first);
    const int leader = static_cast<int>(first.item<float>());
    sum(first);
    wait_for_sums();
    comm::require_everywhere(comm, [&] {
      if (leader != leader_of(hosts.index))
        throw Error(ErrorCode::kInvalidArgument,
                    "group must have the ranks of this host, of which rank " +
                        std::to_string(leader_of(hosts.index)) +
                        " is the first, got the group of rank " +
                        std::to_string(leader));
    });
  }

  [[nodiscard]] bool is_leader() const { return group_->getRank() == 0; }
  [[nodiscard]] int size() const { return group_->getSize(); }
  /// Returns the numbers of this host's ranks in the whole communicator.
  [[nodiscard]] std::vector<int> ranks() const {
    const comm::Hosts& hosts = whole_->hosts();
    const auto first = hosts.ranks.begin() + hosts.index * size();
    return {first, first + size()};
  }
  /// Returns the communicator of the ranks with this local rank, one per host.
  /// That of the leaders exchanges gradients.
  [[nodiscard]] comm::Communicator& between() { return *parts_.between; }

  /// Returns the rank of a host's leader in the whole communicator.
  [[nodiscard]] int leader_of(int host) const {
    return whole_->hosts().ranks[static_cast<std::size_t>(host * size())];
  }

  /// Adds up `flat`, a contiguous tensor of the device, on the leader. Later
  /// operations of the current stream see the sum. The group is called only
  /// when all ranks are ready, so that Error(kCommFailure) can name the missing
  /// rank within the time-out. Collective in the host.
  void sum(at::Tensor& flat) {
    meet();
    guarded("a sum", [&] {
      std::vector<at::Tensor> tensors{flat};
      c10d::ReduceOptions options;
      options.rootRank = 0;
      sums_.push_back(group_->reduce(tensors, options));
      sums_.back()->wait();
    });
  }
  /// Sends the leader's values to all ranks of the host, in the same way.
  void broadcast(at::Tensor& flat) {
    meet();
    guarded("a broadcast", [&] {
      std::vector<at::Tensor> tensors{flat};
      c10d::BroadcastOptions options;
      options.rootRank = 0;
      group_->broadcast(tensors, options)->wait();
    });
  }
  /// Waits on the leader until all sums are complete. Throws
  /// Error(kCommFailure) after the time-out. Local.
  void wait_for_sums() {
    const auto sums = std::exchange(sums_, {});
    if (!is_leader()) return;
    guarded("a sum", [&] {
      const auto end = std::chrono::steady_clock::now() + comm_.timeout();
      for (const auto& sum : sums) {
        while (!sum->isCompleted()) {
          if (std::chrono::steady_clock::now() > end)
            throw std::runtime_error("timed out");
          std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
        if (const std::exception_ptr failed = sum->exception())
          std::rethrow_exception(failed);
      }
    });
  }

  /// Runs an exchange. If it fails, gives up, so that other ranks learn why.
  void telling_others(const std::function<void()>& exchange) {
    try {
      exchange();
    } catch (const Error& error) {
      comm_.give_up(error.what());
      throw;
    }
  }
  /// Returns the texts of all ranks of the host. Collective in the host.
  [[nodiscard]] std::vector<std::string> gather(std::string_view text) {
    std::vector<std::string> texts;
    telling_others([&] { texts = comm::gather_texts(*parts_.inside, text); });
    return texts;
  }
  /// Runs `action` on the leader, and returns its result on all ranks of the
  /// host, or throws its error there. Collective in the host.
  std::string shared(const std::function<std::string()>& action) {
    meet();
    if (!is_leader()) {
      const std::string said = gather("")[0];
      if (said.front() == kDone) return said.substr(1);
      throw Error(static_cast<ErrorCode>(said.front()), said.substr(1));
    }
    std::string found;
    std::string said;
    std::exception_ptr failure;
    try {
      found = action();
      said = kDone + found;
    } catch (const Error& error) {
      failure = std::current_exception();
      said = static_cast<char>(error.code()) + std::string(error.what());
    } catch (const std::exception& error) {
      failure = std::current_exception();
      said = static_cast<char>(ErrorCode::kFailedPrecondition) +
             std::string("the leader of this host: ") + error.what();
    }
    try {
      static_cast<void>(gather(said));
    } catch (const Error&) {
      if (!failure) throw;
    }
    if (failure) std::rethrow_exception(failure);
    return found;
  }

 private:
  static constexpr char kDone = '=';  // not the code of an error

  // Waits until all ranks of the host have called it.
  void meet() {
    telling_others([&] { first_.inside->barrier(); });
  }

  // Ends the group and gives up if `call` throws.
  void guarded(const char* what, const std::function<void()>& call) {
    std::string why;
    try {
      return call();
    } catch (const c10::Error& error) {
      why = error.what_without_backtrace();
    } catch (const std::exception& error) {
      why = error.what();
    }
    why = std::string(what) + " of the ranks of rank " +
          std::to_string(comm_.rank()) + "'s host over " +
          group_->getBackendName() + ": " + why;
    comm_.give_up(why);
    try {
      group_->abort();
    } catch (const std::exception&) {
      // The group cannot be ended; its calls end by its own time-out.
    }
    throw Error(ErrorCode::kCommFailure, why);
  }

  comm::Communicator& comm_;
  c10::intrusive_ptr<c10d::Backend> group_;
  std::unique_ptr<comm::Communicator> whole_;
  comm::HostGroups first_;
  comm::HostGroups parts_;
  std::vector<c10::intrusive_ptr<c10d::Work>> sums_;
};

}  // namespace thinwire::torch
