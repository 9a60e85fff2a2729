// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

namespace thinwire::comm {

/// A queued collective. Its memory must remain allocated and unchanged until
/// wait() has returned. Destroying a Work neither waits nor cancels.
class Work {
 public:
  /// Creates a completed Work, as a group of one returns.
  Work() = default;

  [[nodiscard]] bool done() const;

  /// Blocks until the collective is complete on this rank. Throws its
  /// Error(kCommFailure) if it failed. Every collective ends within the
  /// communicator's time-out, so this cannot hang.
  void wait() const;

  /// Waits like wait(), but throws Error(kCommFailure) if the collective is
  /// still pending after `timeout`. It remains queued, and wait() may be called
  /// again.
  void wait(std::chrono::milliseconds timeout) const;

 private:
  friend class Communicator;
  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace thinwire::comm
