// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace thinwire {

enum class MemoryKind { kOther, kParameters, kGradients, kStates, kBuckets };
inline constexpr std::size_t kNumMemoryKinds = 5;

/// Bytes that the Buffers and MemoryNotes made on one thread hold, whichever
/// thread frees them. A rank is a thread or a process, so this is the memory of
/// a rank. It excludes a communicator's scratch, which its own thread makes: at
/// most 4.1 MiB, or more if it is hierarchical.
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
  /// Returns the sum of at_peak, so that a table of the peak adds up.
  [[nodiscard]] std::uint64_t peak() const noexcept;
};

/// Returns the memory of the calling thread.
[[nodiscard]] MemoryUse memory_use();
/// Sets the peak of the calling thread to what it holds now.
void reset_memory_peak();

/// Sets the kind of the Buffers made on this thread while the scope lives; the
/// innermost scope counts. Without a scope it is kOther. It must end on the
/// thread that made it.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryKind kind) noexcept;
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryKind outer_;
};

/// Counts `bytes` for the thread that made it as long as it lives, whichever
/// thread destroys it. Every Buffer holds a note; callers make one for other
/// memory, for example a framework's tensors.
class MemoryNote {
 public:
  MemoryNote() = default;
  /// Counts `bytes` as memory of `kind`. Throws std::bad_alloc.
  MemoryNote(MemoryKind kind, std::size_t bytes);
  /// Counts `bytes` as the kind of the thread's MemoryScope. Throws
  /// std::bad_alloc.
  explicit MemoryNote(std::size_t bytes);
  ~MemoryNote();

  /// Leaves `other` counting nothing.
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
