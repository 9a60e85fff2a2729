// SPDX-License-Identifier: Apache-2.0
#pragma once

// Include this after xxhash.h with XXH_INLINE_ALL. Each file that does so
// compiles xxHash for the instruction set enabled there.
#include "core/xxh3.h"

namespace thinwire {

namespace {

constexpr Xxh3 kXxh3{
    .hash = [](const void* data, std::size_t bytes) noexcept -> std::uint64_t {
      return XXH3_64bits(data, bytes);
    },
    .reset =
        [](void* state) noexcept {
          XXH3_64bits_reset(static_cast<XXH3_state_t*>(state));
        },
    .update =
        [](void* state, const void* data, std::size_t bytes) noexcept {
          XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, bytes);
        },
    .digest = [](const void* state) noexcept -> std::uint64_t {
      return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state));
    }};

}  // namespace

}  // namespace thinwire
