// SPDX-License-Identifier: Apache-2.0
// Queues that run when somebody waits, and only so far; and who touches what.
#pragma once

#include <ATen/ATen.h>
#include <dlfcn.h>

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace fence {
using at::Device;
using at::DeviceIndex;
using at::Tensor;
constexpr auto kFence = c10::DeviceType::PrivateUse1;

std::recursive_mutex mutex;  // Over everything below.
/// Locks a mutex. A thread that has Python's GIL gives it up while it waits:
/// the owner may need it, because torch counts references of Python's objects.
class Lock {
 public:
  explicit Lock(std::recursive_mutex& m) : mutex_(m) {
    if (mutex_.try_lock()) return;
    static const auto has_gil = python<int()>("PyGILState_Check");
    static const auto give_up = python<void*()>("PyEval_SaveThread");
    static const auto take_back = python<void(void*)>("PyEval_RestoreThread");
    void* const thread =
        has_gil != nullptr && has_gil() != 0 ? give_up() : nullptr;
    mutex_.lock();
    if (thread != nullptr) take_back(thread);
  }
  ~Lock() { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  /// Returns a function of Python's, or null in a program without Python.
  template <class Function>
  static Function* python(const char* name) {
    return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  }

  std::recursive_mutex& mutex_;
};

// What tests ask for.
enum Count { kOperators, kHostWaits, kAsyncCopies, kUnpinnedAsync, kCounts };
int64_t counts[kCounts];
int64_t bytes_in_use = 0, most_bytes_in_use = 0;

constexpr DeviceIndex device_count() { return 4; }

// ---- streams: queues that run when asked, and only as far as asked

/// What is known to be done: a position for each queue.
struct Clock : std::map<int64_t, int64_t> {
  void learn(int64_t queue, int64_t position) {
    int64_t& known = (*this)[queue];
    known = std::max(known, position);
  }
  void learn(const Clock& more) {
    for (const auto& [queue, position] : more) learn(queue, position);
  }
  bool knows(int64_t queue, int64_t position) const {
    const auto at = find(queue);
    return at != end() && at->second >= position;
  }
};
Clock host_clock;

struct Queue {
  Device device;
  int64_t id;
  std::deque<std::function<void()>> work;
  int64_t queued = 0, done = 0;
  Clock clock;  // Of other queues, by the events this one waits for.
};
std::deque<Queue> queues;  // The first device_count() are the default streams.
thread_local DeviceIndex current_device = 0;
thread_local std::map<DeviceIndex, int64_t> current_queue;

Queue& queue_at(int64_t id) {
  while (queues.size() < static_cast<size_t>(device_count())) {
    const auto i = static_cast<DeviceIndex>(queues.size());
    queues.push_back({Device(kFence, i), i});
  }
  return queues.at(static_cast<size_t>(id));
}
DeviceIndex index_of(Device device) {
  return device.has_index() ? device.index() : current_device;
}
int64_t current_id(DeviceIndex device) {
  const auto at = current_queue.find(device);
  return at == current_queue.end() ? device : at->second;
}
Queue& current(DeviceIndex device) { return queue_at(current_id(device)); }

void run_until(Queue& queue, int64_t position) {
  while (queue.done < position) {
    auto work = std::move(queue.work.front());
    queue.work.pop_front();
    work();  // May run other queues, never this one: events lie in the past.
    ++queue.done;
  }
}
void run_all(Queue& queue) { run_until(queue, queue.queued); }
void put(Queue& queue, std::function<void()> work) {
  queue.work.push_back(std::move(work));
  ++queue.queued;
}

struct Event {
  int64_t queue = 0, position = 0, asked = 0;
  Clock clock;
};
Event event_of(const Queue& queue) {
  return {queue.id, queue.queued, 0, queue.clock};
}
void learn(Clock& clock, const Event& event) {
  clock.learn(event.clock);
  clock.learn(event.queue, event.position);
}
void wait(Queue& queue, const Event& e) {
  if (e.queue == queue.id) return;
  learn(queue.clock, e);
  put(queue, [queue = e.queue, position = e.position] {
    run_until(queue_at(queue), position);
  });
}
/// The host has waited.
void reach(const Event& event) {
  run_until(queue_at(event.queue), event.position);
  learn(host_clock, event);
}

// ---- who touches what

struct Access {
  const char *begin, *end;
  int64_t queue, position;
  bool writes;
};
std::map<const void*, std::vector<Access>> accesses;  // By storage.
std::string fault;  // Of a destructor; thrown when somebody can take it.

void require_no_fault() {
  if (fault.empty()) return;
  TORCH_CHECK(false, std::exchange(fault, std::string()));
}
/// The next work of `queue` touches [begin, end) of a storage. Returns what is
/// wrong with that.
std::string touch(Queue& queue, const void* storage, const char* begin,
                  const char* end, bool writes) {
  std::string wrong;
  std::vector<Access>& list = accesses[storage];
  const auto is_known = [&](const Access& a) {
    return a.queue == queue.id || queue.clock.knows(a.queue, a.position) ||
           host_clock.knows(a.queue, a.position);
  };
  for (const Access& a : list) {
    if (a.begin < end && begin < a.end && (a.writes || writes) &&
        !is_known(a)) {
      wrong = c10::str("fence: stream ", queue.id,
                       writes ? " writes" : " reads", " memory that stream ",
                       a.queue, a.writes ? " writes" : " reads",
                       ", without having waited for it");
    }
  }
  if (!wrong.empty()) return wrong;
  std::erase_if(list, [&](const Access& a) {
    return begin <= a.begin && a.end <= end && is_known(a) &&
           (writes || !a.writes);
  });
  list.push_back({begin, end, queue.id, queue.queued + 1, writes});
  return wrong;
}

}  // namespace fence
