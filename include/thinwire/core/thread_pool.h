// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace thinwire {

/// A small number of threads that split loops over memory. The partition
/// depends on the sizes and the number of threads, never on timing. Only one
/// caller at a time. Local.
class ThreadPool {
 public:
  /// Starts the threads. `num_threads` >= 1 includes the calling thread. 0
  /// stands for THINWIRE_NUM_THREADS or, if that is not set, for 1, because
  /// ranks usually share their cores with a framework's threads. Throws
  /// Error(kInvalidArgument), also for a malformed THINWIRE_PREFETCH, so that
  /// an optimizer fails before its first step.
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int num_threads() const noexcept;

  /// Calls body(part) once for every part in [0, num_parts) and returns after
  /// all have ended. Each thread runs one range of adjacent parts. A part that
  /// throws ends its thread's range. Afterwards the exception of the lowest
  /// such part is rethrown.
  void for_each(std::size_t num_parts,
                const std::function<void(std::size_t part)>& body);

  /// Cuts [0, size) into at most num_threads() pieces, which begin at multiples
  /// of `grain` >= 1, and calls body(begin, end) for each. Does nothing if the
  /// size is 0.
  void for_ranges(
      std::size_t size, std::size_t grain,
      const std::function<void(std::size_t begin, std::size_t end)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thinwire
