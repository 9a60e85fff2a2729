// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "comm/completion.h"

namespace thinwire::comm {

/// Runs jobs in the order they came, on one thread that starts with the first
/// of them. The first job that throws fails all that are queued behind it.
class Queue {
 public:
  /// `on_failure` is called with the first failure's text before anyone who
  /// waits for a job learns of it, while the jobs' memory is still alive.
  explicit Queue(std::function<void(const std::string&)> on_failure);
  /// Returns when all jobs have ended.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Throws Error(kCommFailure) if a job has failed already.
  void push(std::shared_ptr<Completion> completion, std::function<void()> run);

  /// Fails every job that has not begun, and every later one.
  void cancel(const std::string& reason);

 private:
  struct Job {
    std::shared_ptr<Completion> completion;
    std::function<void()> run;
  };

  void serve();
  void execute(const Job& job);
  void fail_queued(const std::string& reason);

  const std::function<void(const std::string&)> on_failure_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::string failure_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace thinwire::comm
