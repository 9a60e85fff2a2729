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
  /// The sum times 1 / size(), floats only. Both in the type that the sum is
  /// formed in, 1 / size() rounded to it; the element type is rounded to once.
  kMean,
};

/// Bytes for, or from, one peer. A size of 0 is not sent at all.
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

/// What is under way, for matching and for error texts.
struct Operation {
  std::string_view name;  ///< "all_reduce"
  /// The same on all ranks of the group, and higher for every next exchange.
  std::uint64_t sequence = 0;
  std::chrono::steady_clock::time_point deadline;
  /// What texts call the ranks of the group; empty: 0, 1, 2, ...
  std::span<const int> names{};
};

/// What a backend implements: move bytes between the ranks of a group. All
/// collectives are written once, in Communicator, over exchange(). Called from
/// one thread at a time, but for give_up(); never with the own rank as a peer.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual int rank() const noexcept = 0;
  [[nodiscard]] virtual int size() const noexcept = 0;

  /// Sends and receives all messages (at most one each way per peer) and
  /// returns when the received ones are here and the sent ones' memory may be
  /// used again. Throws Error(kCommFailure) naming the operation and the peers
  /// it still waited for: at the deadline, when a peer has left or given up,
  /// when a message has another size than expected, or after interrupt().
  virtual void exchange(std::span<const SendMessage> sends,
                        std::span<const RecvMessage> receives,
                        const Operation& operation) = 0;

  /// The backend's own in-place all-reduce, whose order of additions is its
  /// business. Returns false if it has none for this dtype and operation.
  virtual bool native_all_reduce(View data, ReduceOp op,
                                 const Operation& operation);

  /// Collective: the ranks that give this `color`, ordered by `key`, then rank;
  /// null if it is < 0. Without groups: Error(kUnavailable), and nothing sent.
  [[nodiscard]] virtual std::unique_ptr<Transport> split(
      int color, int key, const Operation& operation) = 0;

  /// Tells the peers, as well as it can, that this rank gives up, so that they
  /// need not wait for their time-out. Must not block. Any thread may call it;
  /// an exchange under way on this rank then throws.
  virtual void give_up(std::string_view reason) noexcept = 0;
};

/// Makes every exchange under way in this process, and every later one, throw
/// Error(kCommFailure) with this text. Async-signal-safe: programs call it from
/// a SIGTERM handler, because mpirun sends that to all ranks when one dies.
/// `reason` must be a string literal.
void interrupt(const char* reason) noexcept;
/// The reason given to interrupt(), or null.
[[nodiscard]] const char* interrupted() noexcept;

}  // namespace thinwire::comm
