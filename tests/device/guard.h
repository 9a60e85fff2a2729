// SPDX-License-Identifier: Apache-2.0
// Devices, streams and events, as torch asks for them.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "memory.h"

namespace fence {
struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Stream = c10::Stream;
  static Stream stream(Device d, int64_t id) {
    return Stream(Stream::UNSAFE, Device(kFence, index_of(d)), id);
  }
  c10::DeviceType type() const override { return kFence; }
  Device exchangeDevice(Device d) const override {
    const Device before = getDevice();
    setDevice(d);
    return before;
  }
  Device getDevice() const override { return {kFence, current_device}; }
  void setDevice(Device d) const override {
    TORCH_CHECK(index_of(d) < device_count(), "fence: no device ", d);
    current_device = index_of(d);
  }
  void uncheckedSetDevice(Device d) const noexcept override {
    current_device = index_of(d);
  }
  Stream getStream(Device d) const override {
    return stream(d, current_id(index_of(d)));
  }
  Stream getDefaultStream(Device d) const override {
    return stream(d, index_of(d));
  }
  Stream getStreamFromGlobalPool(Device d, bool) const override {
    return getNewStream(d, 0);
  }
  Stream getNewStream(Device d, int) const override {
    const Lock lock(mutex);
    queue_at(0);
    const auto id = static_cast<int64_t>(queues.size());
    queues.push_back({Device(kFence, index_of(d)), id});
    return stream(d, id);
  }
  Stream exchangeStream(Stream s) const override {
    const Stream before = getStream(s.device());
    current_queue[s.device_index()] = s.id();
    return before;
  }
  // No override: torch 2.9 does not ask for it.
  void* getStreamNativeHandle(Stream s) const { return &queue_at(s.id()); }
  DeviceIndex deviceCount() const noexcept override { return device_count(); }
  void record(void** event, const Stream& s, DeviceIndex,
              c10::EventFlag) const override {
    const Lock lock(mutex);
    if (*event == nullptr) *event = new Event;
    *static_cast<Event*>(*event) = event_of(queue_at(s.id()));
  }
  void block(void* event, const Stream& s) const override {
    if (event == nullptr) return;
    const Lock lock(mutex);
    wait(queue_at(s.id()), *static_cast<Event*>(event));
  }
  bool queryEvent(void* event) const override {
    const Lock lock(mutex);
    auto* e = static_cast<Event*>(event);
    if (e == nullptr) return true;
    if (queue_at(e->queue).done < e->position && ++e->asked <= 3) return false;
    reach(*e);
    return true;
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
  bool queryStream(const Stream& s) const override {
    const Lock lock(mutex);
    return queue_at(s.id()).done == queue_at(s.id()).queued;
  }
  void synchronizeStream(const Stream& s) const override {
    const Lock lock(mutex);
    ++counts[kHostWaits];
    reach(event_of(queue_at(s.id())));
    require_no_fault();
  }
  void synchronizeEvent(void* event) const override {
    const Lock lock(mutex);
    if (event == nullptr) return;
    ++counts[kHostWaits];
    reach(*static_cast<Event*>(event));
  }
  void synchronizeDevice(DeviceIndex d) const override {
    const Lock lock(mutex);
    ++counts[kHostWaits];
    for (Queue& queue : queues) {
      if (queue.device.index() == d) reach(event_of(queue));
    }
    require_no_fault();
  }
  void recordDataPtrOnStream(const at::DataPtr& data,
                             const Stream& s) const override {
    const Lock lock(mutex);
    const auto at = blocks.find(data.get());
    if (at != blocks.end() && at->second.queue != s.id()) {
      at->second.others.insert(s.id());
    }
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Generator final : at::CPUGeneratorImpl {
  explicit Generator(DeviceIndex index) {
    device_ = Device(kFence, index);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return device_count(); }
  DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(DeviceIndex d) const override { current_device = d; }
  DeviceIndex exchangeDevice(DeviceIndex d) const override {
    return std::exchange(current_device, d);
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex d) const override {
    return exchangeDevice(d);
  }
  bool isPinnedPtr(const void* p) const override { return is_pinned(p); }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return &pinned_memory;
  }
  Device getDeviceFromPtr(void*) const override {
    return {kFence, current_device};
  }
  at::Generator getNewGenerator(DeviceIndex d) const override {
    return at::make_generator<Generator>(d < 0 ? current_device : d);
  }
  const at::Generator& getDefaultGenerator(DeviceIndex d) const override {
    static const std::vector<at::Generator> all = [this] {
      std::vector<at::Generator> made;
      for (DeviceIndex i = 0; i < device_count(); ++i) {
        made.push_back(getNewGenerator(i));
      }
      return made;
    }();
    return all.at(static_cast<size_t>(d < 0 ? current_device : d));
  }
  void resizePrivateUse1Bytes(const at::Storage& storage,
                              size_t size) const override {
    const c10::DeviceGuard guard(storage.device());
    at::DataPtr data = device_memory.allocate(size);
    const size_t kept = std::min(size, storage.nbytes());
    if (kept > 0) device_memory.copy_data(data.get(), storage.data(), kept);
    storage.set_data_ptr_noswap(std::move(data));
    storage.set_nbytes(size);
  }
};
const int registered = (at::RegisterPrivateUse1HooksInterface(new Hooks), 0);

}  // namespace fence
