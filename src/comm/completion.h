// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "thinwire/comm/work.h"

namespace thinwire::comm {

/// Outcome of one queued collective. The failure is kept as text, so that
/// threads that wait for the same collective never share an exception object.
class Completion {
 public:
  explicit Completion(std::string name) : name_(std::move(name)) {}

  void finish();
  void fail(const std::string& text);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] bool done() const;
  /// Throws Error(kCommFailure) if the collective failed.
  void wait() const;
  /// Throws Error(kCommFailure) also if the collective has not ended within
  /// `timeout`.
  void wait_for(std::chrono::milliseconds timeout) const;

 private:
  void throw_failure() const;

  const std::string name_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  std::string failure_;
};

struct Work::State : Completion {
  using Completion::Completion;
};

}  // namespace thinwire::comm
