// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace thinwire {

enum class MemoryKind { kOther, kParameters, kGradients, kStates, kBuckets };
inline constexpr std::size_t kNumMemoryKinds = 5;

/// Bytes held by the Buffers and MemoryNotes that one thread has made, even if
/// another thread frees them. A rank is a thread or a process, so this is the
/// memory of a rank. It excludes a communicator's scratch memory, which belongs
/// to the communicator's thread: at most 4.1 MiB, or more if it is
/// hierarchical.
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
/// Sets the calling thread's peak to its present memory.
void reset_memory_peak();

/// Sets the kind of Buffers that this thread makes during the scope. The
/// innermost scope counts; without a scope the kind is kOther. A scope must end
/// on the thread that made it.
class MemoryScope {
 public:
  explicit MemoryScope(MemoryKind kind) noexcept;
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryKind outer_;
};

/// Counts `bytes` for the thread that made the note, until any thread destroys
/// the note. Every Buffer holds a note. Callers make one for other memory, for
/// example a framework's tensors.
class MemoryNote {
 public:
  MemoryNote() = default;
  /// Counts `bytes` as memory of `kind`. Throws std::bad_alloc.
  MemoryNote(MemoryKind kind, std::size_t bytes);
  /// Counts `bytes` as the kind of the thread's MemoryScope. Throws
  /// std::bad_alloc.
  explicit MemoryNote(std::size_t bytes);
  ~MemoryNote();

  /// Leaves `other` without any bytes.
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
