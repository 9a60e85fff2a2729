// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace thinwire {

enum class MemoryKind { kOther, kParameters, kGradients, kStates, kBuckets };
inline constexpr std::size_t kNumMemoryKinds = 5;

/// Bytes that the Buffers and MemoryNotes of one thread hold, wherever they
/// are freed. A rank is a thread or a process, so this is memory per rank; but
/// a communicator's scratch, 4.1 MiB at most, is of a thread of its own.
struct MemoryUse {
  using Bytes = std::array<std::uint64_t, kNumMemoryKinds>;

  Bytes now{};      ///< by MemoryKind
  Bytes at_peak{};  ///< by MemoryKind, when the total was largest

  [[nodiscard]] std::uint64_t now_of(MemoryKind kind) const noexcept {
    return now[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] std::uint64_t at_peak_of(MemoryKind kind) const noexcept {
    return at_peak[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] std::uint64_t total() const noexcept;
  /// The sum of at_peak, so a table of the peak adds up.
  [[nodiscard]] std::uint64_t peak() const noexcept;
};

/// Of the calling thread.
[[nodiscard]] MemoryUse memory_use();
/// The peak of the calling thread becomes what it holds now.
void reset_memory_peak();

/// Kind of the Buffers made on this thread while it lives; kOther without one.
/// The innermost counts. Ends on the thread that made it.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryKind kind) noexcept;
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryKind outer_;
};

/// Counts `bytes` for the thread that made it as long as it lives, on whatever
/// thread it ends. Buffers hold one; memory that is not theirs, as tensors of
/// a framework, is noted by hand.
class MemoryNote {
 public:
  MemoryNote() = default;
  /// Throws std::bad_alloc.
  MemoryNote(MemoryKind kind, std::size_t bytes);
  /// The kind that the thread's MemoryScope says.
  explicit MemoryNote(std::size_t bytes);
  ~MemoryNote();

  /// The other one counts nothing afterwards.
  MemoryNote(MemoryNote&& other) noexcept = default;
  MemoryNote& operator=(MemoryNote&& other) noexcept;

 private:
  class Account;
  friend MemoryUse memory_use();
  friend void reset_memory_peak();

  std::shared_ptr<Account> account_;
  MemoryKind kind_ = MemoryKind::kOther;
  std::size_t bytes_ = 0;
};

}  // namespace thinwire
