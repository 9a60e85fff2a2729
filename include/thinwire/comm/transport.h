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
  /// The sum times 1 / size(), for floats only. Both factors have the sum's
  /// type, which is fp32 for 16-bit elements. The product is rounded once to
  /// the element type.
  kMean,
};

/// Bytes sent to, or received from, one peer. A message of 0 bytes is not sent.
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

/// The present operation, for matching messages and for error texts.
struct Operation {
  std::string_view name;  ///< For example "all_reduce".
  /// Number of the exchange, which is equal on all ranks and increases with
  /// every exchange.
  std::uint64_t sequence = 0;
  std::chrono::steady_clock::time_point deadline;
  /// Names of the group's ranks in texts. If empty, they are 0, 1, 2, ... in
  /// order.
  std::span<const int> names{};
};

/// Interface of a backend, which moves bytes between the ranks of a group.
/// Communicator implements all collectives with exchange(). Only one thread at
/// a time calls a transport, except for give_up(). A rank is never its own
/// peer.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;

  /// Sends and receives all messages, at most one each way per peer. Returns
  /// after all messages were received and the memory of sent messages may be
  /// reused. Throws Error(kCommFailure) with the operation and the peers
  /// concerned: at the deadline and after interrupt(). Also throws it if a peer
  /// has left or given up, or if a message has an unexpected size.
  virtual void exchange(std::span<const SendMessage> sends,
                        std::span<const RecvMessage> receives,
                        const Operation& operation) = 0;

  /// Returns the group of the ranks with this `color`, ordered by `key`, then
  /// by rank. Returns null if `color` < 0. Collective. A transport without
  /// groups throws Error(kUnavailable) and sends nothing.
  [[nodiscard]] virtual std::unique_ptr<Transport> split(
      int color, int key, const Operation& operation) = 0;

  /// Notifies the peers, as far as possible, that this rank gives up, so that
  /// they do not wait for their time-out. Must not block. Any thread may call
  /// it; an exchange in progress on this rank then throws.
  virtual void give_up(std::string_view reason) noexcept = 0;
};

/// Makes all present and later exchanges in this process throw
/// Error(kCommFailure) with this text. Async-signal-safe: programs call it from
/// a SIGTERM handler, because mpirun sends SIGTERM to all ranks when one dies.
/// `reason` must be a string literal.
void interrupt(const char* reason) noexcept;
/// Returns the reason given to interrupt(), or null.
[[nodiscard]] const char* interrupted() noexcept;

}  // namespace thinwire::comm
