// SPDX-License-Identifier: Apache-2.0
// Device memory that the host cannot read, and pinned memory.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>

#include <cstring>
#include <set>

#include "streams.h"

namespace fence {
constexpr size_t kRange = size_t{1} << 36;
struct Ranges {
  char *device, *host;
  Ranges() : device(map(PROT_NONE)), host(map(PROT_READ | PROT_WRITE)) {}
  static char* map(int protection) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* at = mmap(nullptr, kRange, protection, flags, -1, 0);
    TORCH_CHECK(at != MAP_FAILED, "fence: no address space");
    return static_cast<char*>(at);
  }
};
const Ranges& ranges() {
  static const Ranges both;
  return both;
}
char* on_host(const void* p) {
  return ranges().host + (static_cast<const char*>(p) - ranges().device);
}

struct Block {
  size_t size;
  int64_t queue;             // Of the allocation.
  std::set<int64_t> others;  // record_stream()
};
std::map<const void*, Block> blocks;  // In use, by device address.
std::map<std::pair<int64_t, size_t>, std::vector<char*>> unused;
size_t first_unused = 4096;

void release(void* p) {
  if (p == nullptr) return;
  const Lock lock(mutex);
  Block block = std::move(blocks.extract(p).mapped());
  bytes_in_use -= static_cast<int64_t>(block.size);
  // In the order of the stream it belongs to: whoever else still reads it
  // without having said so reads NaN.
  Queue& queue = queue_at(block.queue);
  for (const int64_t id : block.others) wait(queue, event_of(queue_at(id)));
  const char* begin = static_cast<const char*>(p);
  const std::string wrong = touch(queue, p, begin, begin + block.size, true);
  if (!wrong.empty()) fault = wrong + " (freed without record_stream)";
  accesses[p] = {{begin, begin + block.size, queue.id, queue.queued + 1, true}};
  put(queue, [p, size = block.size] { std::memset(on_host(p), 0xff, size); });
  unused[{block.queue, block.size}].push_back(static_cast<char*>(p));
}

struct DeviceMemory final : c10::DeviceAllocator {
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const at::DataPtr& data, c10::Stream s) override {
    c10::impl::getDeviceGuardImpl(kFence)->recordDataPtrOnStream(data, s);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      DeviceIndex) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = bytes_in_use;
    stats.allocated_bytes[0].peak = most_bytes_in_use;
    return stats;
  }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex) override {
    most_bytes_in_use = bytes_in_use;
  }
  at::DataPtr allocate(size_t size) override {
    const Device device(kFence, current_device);
    if (size == 0) return {nullptr, nullptr, &release, device};
    const Lock lock(mutex);
    const size_t rounded = (size + 511) / 512 * 512;
    const int64_t id = current_id(current_device);
    auto& free_blocks = unused[{id, rounded}];
    char* p;
    if (free_blocks.empty()) {
      TORCH_CHECK(first_unused + rounded < kRange, "fence: out of memory");
      p = ranges().device + first_unused;
      first_unused += rounded;
      std::memset(on_host(p), 0xff, rounded);
    } else {
      p = free_blocks.back();
      free_blocks.pop_back();
    }
    blocks[p] = {rounded, id, {}};
    bytes_in_use += static_cast<int64_t>(rounded);
    most_bytes_in_use = std::max(most_bytes_in_use, bytes_in_use);
    return {p, p, &release, device};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    const Lock lock(mutex);
    put(current(current_device),
        [=] { std::memmove(on_host(to), on_host(from), bytes); });
  }
} device_memory;
REGISTER_ALLOCATOR(kFence, &device_memory)

std::map<const char*, size_t, std::greater<>> pinned;
void unpin(void* p) {
  const Lock lock(mutex);
  pinned.erase(static_cast<char*>(p));
  std::free(p);
}
// How many arrays are still pinned before it is refused; no limit if negative.
int64_t pinned_left = std::getenv("FENCE_WITHOUT_PINNED") == nullptr ? -1 : 0;
struct PinnedMemory final : at::Allocator {
  at::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, nullptr, &unpin, at::kCPU};
    TORCH_CHECK(pinned_left != 0, "fence: no pinned memory");
    --pinned_left;
    void* p = std::aligned_alloc(64, (size + 63) / 64 * 64);
    std::memset(p, 0xff, size);
    const Lock lock(mutex);
    pinned[static_cast<char*>(p)] = size;
    return {p, p, &unpin, at::kCPU};
  }
  at::DeleterFnPtr raw_deleter() const override { return &unpin; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
} pinned_memory;
bool is_pinned(const void* p) {
  const Lock lock(mutex);
  const auto at = pinned.lower_bound(static_cast<const char*>(p));
  return at != pinned.end() &&
         static_cast<const char*>(p) < at->first + at->second;
}

}  // namespace fence
