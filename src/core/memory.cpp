// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/memory.h"

#include <atomic>
#include <numeric>
#include <utility>

namespace thinwire {

namespace {

thread_local MemoryKind current_kind = MemoryKind::kOther;

std::uint64_t sum(const MemoryUse::Bytes& bytes) noexcept {
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

}  // namespace

// The memory of one thread. Only that thread adds and reads, but any thread may
// subtract, so the counters are atomic and the peak is not.
class MemoryNote::Account {
 public:
  // Shared, because memory may outlive the thread that allocated it.
  static const std::shared_ptr<Account>& of_this_thread() {
    thread_local const auto account = std::make_shared<Account>();
    return account;
  }

  void add(MemoryKind kind, std::size_t bytes) noexcept {
    counter(kind).fetch_add(bytes, std::memory_order_relaxed);
    const MemoryUse::Bytes held = now();
    if (sum(held) > sum(at_peak_)) at_peak_ = held;
  }
  void remove(MemoryKind kind, std::size_t bytes) noexcept {
    counter(kind).fetch_sub(bytes, std::memory_order_relaxed);
  }
  void reset_peak() noexcept { at_peak_ = now(); }
  [[nodiscard]] MemoryUse use() const noexcept { return {now(), at_peak_}; }

 private:
  std::atomic<std::uint64_t>& counter(MemoryKind kind) noexcept {
    return now_[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] MemoryUse::Bytes now() const noexcept {
    MemoryUse::Bytes bytes{};
    for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
      bytes[kind] = now_[kind].load(std::memory_order_relaxed);
    return bytes;
  }

  std::array<std::atomic<std::uint64_t>, kNumMemoryKinds> now_{};
  MemoryUse::Bytes at_peak_{};
};

std::uint64_t MemoryUse::total() const noexcept { return sum(now); }
std::uint64_t MemoryUse::peak() const noexcept { return sum(at_peak); }

MemoryUse memory_use() { return MemoryNote::Account::of_this_thread()->use(); }
void reset_memory_peak() {
  MemoryNote::Account::of_this_thread()->reset_peak();
}

MemoryScope::MemoryScope(MemoryKind kind) noexcept
    : outer_(std::exchange(current_kind, kind)) {}
MemoryScope::~MemoryScope() { current_kind = outer_; }

MemoryNote::MemoryNote(MemoryKind kind, std::size_t bytes)
    : account_(Account::of_this_thread()), kind_(kind), bytes_(bytes) {
  account_->add(kind_, bytes_);
}
MemoryNote::MemoryNote(std::size_t bytes) : MemoryNote(current_kind, bytes) {}

MemoryNote::~MemoryNote() {
  if (account_) account_->remove(kind_, bytes_);
}

MemoryNote& MemoryNote::operator=(MemoryNote&& other) noexcept {
  MemoryNote mine(std::move(other));
  std::swap(account_, mine.account_);
  std::swap(kind_, mine.kind_);
  std::swap(bytes_, mine.bytes_);
  return *this;
}

}  // namespace thinwire
