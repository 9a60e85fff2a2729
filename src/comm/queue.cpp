// SPDX-License-Identifier: Apache-2.0
#include "comm/queue.h"

#include <exception>
#include <utility>

#include "core/prompt_thread.h"
#include "thinwire/core/error.h"

namespace thinwire::comm {
namespace {

std::string after(const std::string& failure) {
  return "communicator already failed: " + failure;
}

}  // namespace

Queue::Queue(std::function<void(const std::string&)> on_failure)
    : on_failure_(std::move(on_failure)) {}

Queue::~Queue() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Queue::push(std::shared_ptr<Completion> completion,
                 std::function<void()> run) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty())
    throw Error(ErrorCode::kCommFailure,
                completion->name() + ": " + after(failure_));
  jobs_.push_back({std::move(completion), std::move(run)});
  if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  changed_.notify_all();
}

void Queue::cancel(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  fail_queued(reason);
}

void Queue::serve() {
  make_thread_prompt();
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    execute(job);
  }
}

void Queue::execute(const Job& job) {
  std::string text;
  try {
    job.run();
    job.completion->finish();
    return;
  } catch (const Error& error) {
    text = error.what();
  } catch (const std::exception& error) {
    text = job.completion->name() + ": " + error.what();
  }
  on_failure_(text);
  {
    const std::lock_guard lock(mutex_);
    fail_queued(text);
  }
  job.completion->fail(text);
}

// The caller must hold the mutex.
void Queue::fail_queued(const std::string& reason) {
  if (failure_.empty()) failure_ = reason;
  for (const Job& job : jobs_)
    job.completion->fail(job.completion->name() + ": " + after(failure_));
  jobs_.clear();
}

}  // namespace thinwire::comm
