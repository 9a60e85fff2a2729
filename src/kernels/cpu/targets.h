// SPDX-License-Identifier: Apache-2.0
#pragma once

// To be included before any Highway header. The kernels keep vectors in arrays,
// which vectors of unknown length cannot be: Arm uses NEON, RISC-V the scalar
// target. Every source must see the same list, or forcing a target would mean
// different things to them.
#define THINWIRE_UNUSED_TARGETS \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#if (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)) && \
    !defined(THINWIRE_TEST_ALL)
// Sanitizers take minutes per target, and all targets touch memory alike: two
// widths of vectors do.
#define HWY_DISABLED_TARGETS \
  (THINWIRE_UNUSED_TARGETS | HWY_SSSE3 | HWY_SSE4 | HWY_AVX3)
#else
#define HWY_DISABLED_TARGETS THINWIRE_UNUSED_TARGETS
#endif
