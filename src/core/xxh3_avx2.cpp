// SPDX-License-Identifier: Apache-2.0
#include "core/xxh3.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)

// AVX2 is enabled for xxHash only. An inline function of the standard library
// compiled with AVX2 could be linked into code for all processors.
#include <immintrin.h>

#include <cstdlib>
#include <cstring>

#pragma GCC push_options
#pragma GCC target("avx2")
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/xxh3_functions.h"
#pragma GCC pop_options

namespace thinwire {

const Xxh3* xxh3_avx2() noexcept {
  return __builtin_cpu_supports("avx2") ? &kXxh3 : nullptr;
}

}  // namespace thinwire

#else

namespace thinwire {

const Xxh3* xxh3_avx2() noexcept { return nullptr; }

}  // namespace thinwire

#endif
