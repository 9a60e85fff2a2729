// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

namespace thinwire::comm {

/// A queued collective. Its memory must stay alive and untouched until wait()
/// has returned. Destroying a Work neither waits nor cancels.
class Work {
 public:
  /// Makes a completed one, as a group of one returns.
  Work() = default;

  [[nodiscard]] bool done() const;

  /// Returns when the collective is complete on this rank. Throws its
  /// Error(kCommFailure) if it failed. Every collective ends by itself within
  /// the communicator's time-out, so this cannot hang.
  void wait() const;

  /// Waits like wait(), but throws Error(kCommFailure) after `timeout` if the
  /// collective is still pending. It stays queued; wait() may be called again.
  void wait(std::chrono::milliseconds timeout) const;

 private:
  friend class Communicator;
  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace thinwire::comm
