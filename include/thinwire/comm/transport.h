// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "thinwire/core/view.h"

namespace thinwire::comm {

enum class ReduceOp {
  kSum,
  kMax,
  /// The sum times 1 / size(), for floats only. Both factors have the type of
  /// the sum, which is fp32 for elements of 16 bits. The product is rounded
  /// once to the element type.
  kMean,
};

/// Bytes for, or from, one peer. A message of 0 bytes is not sent.
struct SendMessage {
  int peer = 0;
  const void* data = nullptr;
  std::size_t bytes = 0;
};
struct RecvMessage {
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// The running operation, for matching and for error texts.
struct Operation {
  std::string_view name;  ///< For example "all_reduce".
  /// Number of the exchange: the same on all ranks, and higher for each next
  /// one.
  std::uint64_t sequence = 0;
  std::chrono::steady_clock::time_point deadline;
  /// Names of the group's ranks in texts; if empty: 0, 1, 2, ... in order.
  std::span<const int> names{};
};

/// Interface of a backend, which moves bytes between the ranks of a group.
/// Communicator implements all collectives over exchange(). One thread at a
/// time calls a transport, except give_up(). A rank is never its own peer.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;

  /// Sends and receives all messages, at most one each way per peer. Returns
  /// when the received ones are here and the memory of the sent ones may be
  /// reused. Throws Error(kCommFailure) naming the operation and the peers
  /// concerned. It throws at the deadline, if a peer has left or given up, if
  /// a message has an unexpected size, or after interrupt().
  virtual void exchange(std::span<const SendMessage> sends,
                        std::span<const RecvMessage> receives,
                        const Operation& operation) = 0;

  /// Returns the group of the ranks with this `color`, ordered by `key`, then
  /// by rank; null if it is < 0. Collective. A transport without groups throws
  /// Error(kUnavailable) and sends nothing.
  [[nodiscard]] virtual std::unique_ptr<Transport> split(
      int color, int key, const Operation& operation) = 0;

  /// Tells the peers, as far as possible, that this rank gives up, so that they
  /// need not wait for their time-out. Must not block. Any thread may call it;
  /// a running exchange on this rank then throws.
  virtual void give_up(std::string_view reason) noexcept = 0;
};

/// Makes every running exchange in this process, and every later one, throw
/// Error(kCommFailure) with this text. Async-signal-safe: programs call it from
/// a SIGTERM handler, because mpirun sends SIGTERM to all ranks when one dies.
/// `reason` must be a string literal.
void interrupt(const char* reason) noexcept;
/// Returns the reason given to interrupt(), or null.
[[nodiscard]] const char* interrupted() noexcept;

}  // namespace thinwire::comm
