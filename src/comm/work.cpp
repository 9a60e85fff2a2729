// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/work.h"

#include <fmt/format.h>

#include "comm/completion.h"
#include "comm/deadline.h"
#include "thinwire/core/error.h"

namespace thinwire::comm {

void Completion::finish() {
  const std::lock_guard lock(mutex_);
  done_ = true;
  changed_.notify_all();
}

void Completion::fail(const std::string& text) {
  const std::lock_guard lock(mutex_);
  failure_ = text;
  done_ = true;
  changed_.notify_all();
}

bool Completion::done() const {
  const std::lock_guard lock(mutex_);
  return done_;
}

void Completion::wait() const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_; });
  throw_failure();
}

void Completion::wait_for(std::chrono::milliseconds timeout) const {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline_after(timeout),
                           [this] { return done_; })) {
    throw Error(
        ErrorCode::kCommFailure,
        fmt::format("{}: still running after {} ms", name_, timeout.count()));
  }
  throw_failure();
}

void Completion::throw_failure() const {
  if (!failure_.empty()) throw Error(ErrorCode::kCommFailure, failure_);
}

bool Work::done() const { return !state_ || state_->done(); }

void Work::wait() const {
  if (state_) state_->wait();
}

void Work::wait(std::chrono::milliseconds timeout) const {
  if (state_) state_->wait_for(timeout);
}

}  // namespace thinwire::comm
