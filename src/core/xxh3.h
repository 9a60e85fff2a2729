// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire {

/// XXH3-64 for one instruction set. xxHash selects the set at compile time, but
/// the processor is known only at run time. `state` points to an XXH3_state_t.
struct Xxh3 {
  std::uint64_t (*hash)(const void* data, std::size_t bytes) noexcept;
  void (*reset)(void* state) noexcept;
  void (*update)(void* state, const void* data, std::size_t bytes) noexcept;
  std::uint64_t (*digest)(const void* state) noexcept;
};

/// Returns the version for AVX2, which is 2.7 times as fast as with SSE2.
/// Returns null if the processor lacks AVX2 or the compiler did not support it.
[[nodiscard]] const Xxh3* xxh3_avx2() noexcept;

}  // namespace thinwire
