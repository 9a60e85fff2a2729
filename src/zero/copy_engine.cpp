// SPDX-License-Identifier: Apache-2.0
#include "thinwire/zero/copy_engine.h"

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

namespace thinwire::zero {

namespace {

class HostCopyEngine final : public CopyEngine {
 public:
  HostCopyEngine() : thread_([this] { run(); }) {}
  ~HostCopyEngine() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  HostCopyEngine(const HostCopyEngine&) = delete;
  HostCopyEngine& operator=(const HostCopyEngine&) = delete;

  Ticket queue(ConstView from, View to) override {
    const std::lock_guard lock(mutex_);
    copies_.push_back({from, to});
    changed_.notify_all();
    return ++queued_;
  }

  void wait(Ticket ticket) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= ticket; });
  }

 private:
  struct Copy {
    ConstView from;
    View to;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ends_ || !copies_.empty(); });
      if (copies_.empty()) return;
      const Copy copy = copies_.front();
      copies_.pop_front();
      lock.unlock();
      if (!copy.from.empty())
        std::memcpy(copy.to.data(), copy.from.data(), copy.from.bytes());
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Copy> copies_;
  Ticket queued_ = 0;
  Ticket done_ = 0;
  bool ends_ = false;
  std::thread thread_;  // the last: it uses all of the above
};

}  // namespace

std::unique_ptr<CopyEngine> make_host_copy_engine() {
  return std::make_unique<HostCopyEngine>();
}

}  // namespace thinwire::zero
