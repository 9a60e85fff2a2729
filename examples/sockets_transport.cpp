// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "thinwire/comm/communicator.h"
#include "thinwire/comm/run.h"
#include "thinwire/comm/transport.h"
#include "thinwire/core/error.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/onebit_adam.h"

namespace comm = thinwire::comm;

// One message in flight. Its header has the number of the exchange and the
// length, which detects ranks that are out of step.
struct Transfer {
  int peer = 0;
  bool is_sent = false;
  std::array<std::uint64_t, 2> header{};  // Sequence number and size in bytes.
  char* data = nullptr;
  std::size_t bytes = 0;
  std::size_t done = 0;  // Bytes of header and data so far.

  bool is_done() const { return done == sizeof header + bytes; }
};

// Moves bytes over one connected stream socket per peer.
class SocketTransport final : public comm::Transport {
 public:
  SocketTransport(int rank, std::vector<int> sockets)
      : rank_(rank), sockets_(std::move(sockets)) {}
  ~SocketTransport() override {
    for (const int socket : sockets_)
      if (socket >= 0) close(socket);
  }
  SocketTransport(const SocketTransport&) = delete;
  SocketTransport& operator=(const SocketTransport&) = delete;

  std::string_view name() const noexcept override { return "sockets"; }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override {
    return static_cast<int>(sockets_.size());
  }

  void exchange(std::span<const comm::SendMessage> sends,
                std::span<const comm::RecvMessage> receives,
                const comm::Operation& operation) override {
    std::vector<Transfer> transfers;
    for (const auto& [peer, data, bytes] : sends)
      if (bytes > 0)
        transfers.push_back({peer,
                             true,
                             {operation.sequence, bytes},
                             static_cast<char*>(const_cast<void*>(data)),
                             bytes});
    for (const auto& [peer, data, bytes] : receives)
      if (bytes > 0)
        transfers.push_back({peer, false, {}, static_cast<char*>(data), bytes});
    while (!transfers.empty()) {
      wait(transfers, operation);
      for (Transfer& transfer : transfers) advance(transfer, operation);
      std::erase_if(transfers, [](const Transfer& t) { return t.is_done(); });
    }
  }

  std::unique_ptr<Transport> split(int, int, const comm::Operation&) override {
    throw thinwire::Error(thinwire::ErrorCode::kUnavailable,
                          "split: sockets have no groups");
  }

  // Peers that wait for this rank then read the end of the stream.
  void give_up(std::string_view) noexcept override {
    for (const int socket : sockets_)
      if (socket >= 0) shutdown(socket, SHUT_RDWR);
  }

 private:
  [[noreturn]] static void fail(const comm::Operation& operation, int peer,
                                const std::string& what) {
    throw thinwire::Error(thinwire::ErrorCode::kCommFailure,
                          std::string(operation.name) + ": rank " +
                              std::to_string(peer) + " " + what);
  }

  int socket_of(const Transfer& transfer) const {
    return sockets_[static_cast<std::size_t>(transfer.peer)];
  }

  // Waits until a socket can be read or written, at most 100 ms, so that the
  // caller checks the deadline and interrupt().
  void wait(const std::vector<Transfer>& transfers,
            const comm::Operation& operation) const {
    const int peer = transfers.front().peer;
    if (const char* reason = comm::interrupted()) fail(operation, peer, reason);
    if (std::chrono::steady_clock::now() > operation.deadline)
      fail(operation, peer, "did not answer in time");
    std::vector<pollfd> polled;
    for (const Transfer& transfer : transfers)
      polled.push_back({socket_of(transfer),
                        static_cast<short>(transfer.is_sent ? POLLOUT : POLLIN),
                        0});
    poll(polled.data(), polled.size(), 100);
  }

  // Moves as much of one message as fits now, the header first.
  void advance(Transfer& transfer, const comm::Operation& operation) const {
    const bool in_header = transfer.done < sizeof transfer.header;
    const std::size_t end =
        sizeof transfer.header + (in_header ? 0 : transfer.bytes);
    char* const from = in_header
                           ? reinterpret_cast<char*>(transfer.header.data())
                           : transfer.data - sizeof transfer.header;
    char* const at = from + transfer.done;
    const std::size_t left = end - transfer.done;
    const ssize_t moved =
        transfer.is_sent
            ? send(socket_of(transfer), at, left, MSG_DONTWAIT | MSG_NOSIGNAL)
            : recv(socket_of(transfer), at, left, MSG_DONTWAIT);
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (moved <= 0) fail(operation, transfer.peer, "is gone");
    transfer.done += static_cast<std::size_t>(moved);
    if (transfer.done == sizeof transfer.header &&
        transfer.header !=
            std::array<std::uint64_t, 2>{operation.sequence, transfer.bytes})
      fail(operation, transfer.peer, "has made another call");
  }

  int rank_;
  std::vector<int> sockets_;  // One per peer; -1 for this rank itself.
};

// The same task as in examples/plain_buffers.cpp.
void find_centre(comm::Communicator& comm) {
  const auto layout = thinwire::ParameterLayout::of(
      {{.name = "centre", .shape = {300, 100}}, {.name = "bias", .shape = {}}});
  thinwire::optim::OnebitAdam optimizer(
      comm, layout, {.learning_rate = 0.02, .freeze = {.step = 100}});

  std::vector<float> params(layout.size()), grads(layout.size());
  std::mt19937 random(static_cast<unsigned>(comm.rank()));
  std::normal_distribution<float> noise;
  for (int step = 1; step <= 400; ++step) {
    for (std::size_t i = 0; i < params.size(); ++i)
      grads[i] = params[i] - (i % 2 == 0 ? 1.0f : -1.0f) + noise(random);
    const auto report = optimizer.step(params, grads);
    if (comm.rank() == 0 && step % 50 == 0) {
      std::cout << "step " << step << ": " << to_string(report.phase)
                << ", first number " << params[0] << ", " << report.bytes_sent
                << " bytes sent" << std::endl;
    }
  }
}

// Starts three processes of one machine, each pair of them joined by a socket.
int main() {
  constexpr int kRanks = 3;
  std::array<std::vector<int>, kRanks> sockets;
  sockets.fill(std::vector<int>(kRanks, -1));
  for (std::size_t a = 0; a < kRanks; ++a)
    for (std::size_t b = a + 1; b < kRanks; ++b) {
      std::array<int, 2> ends{};
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) return 1;
      sockets[a][b] = ends[0];
      sockets[b][a] = ends[1];
    }
  int rank = 0;
  for (int child = 1; child < kRanks && rank == 0; ++child)
    if (fork() == 0) rank = child;
  for (std::size_t other = 0; other < kRanks; ++other)
    if (other != static_cast<std::size_t>(rank))
      for (const int socket : sockets[other])
        if (socket >= 0) close(socket);

  int result = comm::run(
      std::make_unique<comm::Communicator>(std::make_unique<SocketTransport>(
          rank, sockets[static_cast<std::size_t>(rank)])),
      find_centre);
  for (int status = 0; rank == 0 && wait(&status) > 0;)
    result = std::max(result, status == 0 ? 0 : 1);
  return result;
}
