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

/// Runs jobs in order on one thread, which starts with the first job. The first
/// job that throws fails all jobs queued behind it.
class Queue {
 public:
  /// `on_failure` receives the text of the first failure before anyone who
  /// waits for a job learns of it. At that time the jobs' memory still exists.
  explicit Queue(std::function<void(const std::string&)> on_failure);
  /// Blocks until all jobs have ended.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Throws Error(kCommFailure) if an earlier job has failed.
  void push(std::shared_ptr<Completion> completion, std::function<void()> run);

  /// Fails every job that has not begun and every later one.
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
