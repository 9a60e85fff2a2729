// SPDX-License-Identifier: Apache-2.0
#include "c/comm.h"

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "c/guarded.h"
#include "thinwire/comm/local.h"
#include "thinwire/comm/registry.h"
#include "thinwire/comm/transport.h"
#include "thinwire/core/env.h"

namespace {

using namespace thinwire;
using c::guarded;
using c::require_pointer;

// Holds the message of the transport's last failed exchange in this thread.
thread_local std::string exchange_reason;

// Transport that moves bytes by the caller's functions.
class CallersTransport final : public comm::Transport {
 public:
  explicit CallersTransport(const thinwire_transport& of) : of_(of) {}
  ~CallersTransport() override {
    if (of_.release != nullptr) of_.release(of_.context);
  }
  CallersTransport(const CallersTransport&) = delete;
  CallersTransport& operator=(const CallersTransport&) = delete;

  [[nodiscard]] std::string_view name() const noexcept override { return "c"; }
  [[nodiscard]] int rank() const noexcept override { return of_.rank; }
  [[nodiscard]] int size() const noexcept override { return of_.size; }

  void exchange(std::span<const comm::SendMessage> sends,
                std::span<const comm::RecvMessage> receives,
                const comm::Operation& operation) override {
    const std::string name(operation.name);
    if (const char* reason = comm::interrupted())
      throw Error(ErrorCode::kCommFailure, fmt::format("{}: {}", name, reason));
    sends_.clear();
    for (const auto& [peer, data, bytes] : sends)
      if (bytes > 0) sends_.push_back({peer, data, bytes});
    receives_.clear();
    for (const auto& [peer, data, bytes] : receives)
      if (bytes > 0) receives_.push_back({peer, data, bytes});
    const std::chrono::duration<double> left =
        operation.deadline - std::chrono::steady_clock::now();
    const thinwire_exchange exchange{.sends = sends_.data(),
                                     .num_sends = sends_.size(),
                                     .receives = receives_.data(),
                                     .num_receives = receives_.size(),
                                     .operation = name.c_str(),
                                     .sequence = operation.sequence,
                                     .seconds_left = left.count()};
    exchange_reason.clear();
    const int result = of_.exchange(of_.context, &exchange);
    if (result == 0) return;
    std::string text =
        fmt::format("{}: the transport's exchange returned {}", name, result);
    if (!exchange_reason.empty()) text += ": " + exchange_reason;
    throw Error(ErrorCode::kCommFailure, text);
  }
  std::unique_ptr<Transport> split(int, int, const comm::Operation&) override {
    throw Error(ErrorCode::kUnavailable,
                "split: a transport of the C interface has no groups");
  }
  void give_up(std::string_view reason) noexcept override {
    if (of_.give_up == nullptr) return;
    try {
      of_.give_up(of_.context, std::string(reason).c_str());
    } catch (...) {  // No memory for the text.
      of_.give_up(of_.context, "");
    }
  }

 private:
  const thinwire_transport of_;
  std::vector<thinwire_send> sends_;
  std::vector<thinwire_receive> receives_;
};

void hand_over(std::unique_ptr<comm::Communicator> made, thinwire_comm** to) {
  *to = new thinwire_comm{std::move(made)};
}

comm::CommunicatorOptions options_of(double seconds) {
  constexpr double kLongest = 1e9;
  require(seconds > 0 && seconds <= kLongest, "seconds", "in (0, 1e9]",
          seconds);
  return {.timeout = std::chrono::milliseconds(
              static_cast<std::int64_t>(std::ceil(seconds * 1e3)))};
}

}  // namespace

thinwire_status thinwire_comm_from_environment(thinwire_comm** comm) {
  return guarded([&] {
    require_pointer(comm, "comm");
    hand_over(comm::from_environment(), comm);
  });
}

thinwire_status thinwire_comm_local(int size, thinwire_comm** comms) {
  return guarded([&] {
    require_pointer(comms, "comms");
    auto made = comm::make_local_group(size, {.timeout = env::timeout()});
    std::vector<std::unique_ptr<thinwire_comm>> handles;
    for (auto& communicator : made)
      handles.push_back(std::make_unique<thinwire_comm>(
          thinwire_comm{std::move(communicator)}));
    for (std::size_t rank = 0; rank < handles.size(); ++rank)
      comms[rank] = handles[rank].release();
  });
}

thinwire_status thinwire_comm_from_transport(
    const thinwire_transport* transport, double seconds, thinwire_comm** comm) {
  return guarded([&] {
    require_pointer(transport, "transport");
    require_pointer(comm, "comm");
    const thinwire_transport& of = *transport;
    require(of.struct_size == sizeof of, "transport.struct_size",
            fmt::format("{}", sizeof of), of.struct_size);
    require_pointer(reinterpret_cast<const void*>(of.exchange),
                    "transport.exchange");
    require(of.size >= 1, "transport.size", ">= 1", of.size);
    require(0 <= of.rank && of.rank < of.size, "transport.rank",
            fmt::format("in [0, {})", of.size), of.rank);
    const auto options = options_of(seconds);
    hand_over(std::make_unique<comm::Communicator>(
                  std::make_unique<CallersTransport>(of), options),
              comm);
  });
}

void thinwire_exchange_failed(const char* reason) {
  static_cast<void>(guarded([&] {
    require_pointer(reason, "reason");
    exchange_reason = reason;
  }));
}

thinwire_status thinwire_comm_from_mpi(int fortran_handle, double seconds,
                                       thinwire_comm** comm) {
  return guarded([&] {
    require_pointer(comm, "comm");
    hand_over(comm::from_mpi(fortran_handle, options_of(seconds)), comm);
  });
}

int thinwire_comm_rank(const thinwire_comm* comm) {
  return comm == nullptr ? -1 : comm->communicator->rank();
}

int thinwire_comm_size(const thinwire_comm* comm) {
  return comm == nullptr ? -1 : comm->communicator->size();
}

thinwire_status thinwire_comm_barrier(thinwire_comm* comm) {
  return guarded([&] {
    require_pointer(comm, "comm");
    comm->communicator->barrier();
  });
}

thinwire_status thinwire_comm_give_up(thinwire_comm* comm, const char* reason) {
  return guarded([&] {
    require_pointer(comm, "comm");
    require_pointer(reason, "reason");
    comm->communicator->give_up(reason);
  });
}

void thinwire_comm_free(thinwire_comm* comm) { delete comm; }
