// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>

namespace thinwire::comm {

/// A queued collective. The memory it was given must stay alive and untouched
/// until wait() has returned. Dropping a Work neither waits nor cancels.
class Work {
 public:
  /// Already done: what a group of one returns.
  Work() = default;

  [[nodiscard]] bool done() const;

  /// Returns when the collective is complete on this rank. Throws its
  /// Error(kCommFailure) if it failed. Every collective ends by itself within
  /// the communicator's time-out, so this cannot hang.
  void wait() const;

  /// The same, but throws Error(kCommFailure) after `timeout` if the collective
  /// is still under way (it stays queued; wait() may be called again).
  void wait(std::chrono::milliseconds timeout) const;

 private:
  friend class Communicator;
  struct State;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  std::shared_ptr<State> state_;
};

}  // namespace thinwire::comm
