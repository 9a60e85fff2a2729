// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "thinwire/core/buffer.h"
#include "thinwire/core/thread_pool.h"

namespace thinwire::apps::bench {

/// Rows and limits divide arrays among threads in multiples of this, so that a
/// thread touches the same part of memory in both.
inline constexpr std::size_t kPieceElements = std::size_t{1} << 16;

/// Loops that only move memory. A kernel can be faster only as far as its mix
/// of reads and writes differs.
enum class Limit {
  kAdd,          ///< a += b: 2 reads, 1 write.
  kAdamStreams,  ///< a += d, b += d, c += d: 4 reads, 3 writes.
  kRead,         ///< 1 read.
  kTwice,        ///< a += 1, then again: 2 reads, 2 writes.
};

/// "a += b", "4R+3W", "read", "2 x (R+W)".
[[nodiscard]] std::string_view to_string(Limit limit) noexcept;
/// Returns logical bytes: neither this nor any row counts write-allocate.
[[nodiscard]] double bytes_per_element(Limit limit) noexcept;

/// Arrays and loops like those of a row: the same lengths, huge pages, threads
/// and partition, and the widest vectors of this machine.
class Limits {
 public:
  Limits(std::size_t elements, ThreadPool& pool);

  /// Runs once over the arrays.
  void run(Limit limit);

 private:
  [[nodiscard]] float* array(std::size_t index);

  std::size_t elements_;
  ThreadPool& pool_;
  std::array<Buffer, 4> arrays_;
};

}  // namespace thinwire::apps::bench
