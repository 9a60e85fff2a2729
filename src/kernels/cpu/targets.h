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

// Calls the code of the target in use. Kernels have no other way to it, so that
// THINWIRE_SIMD holds for the first one that runs.
#define THINWIRE_DISPATCH(function) \
  (::thinwire::kernels::choose_cpu_target(), HWY_DYNAMIC_DISPATCH(function))

namespace thinwire::kernels {

/// Makes the kernels use the target that THINWIRE_SIMD names, in the first call
/// that does not throw. Throws Error(kInvalidArgument) naming the supported
/// targets, if it is none of them.
void choose_cpu_target();

}  // namespace thinwire::kernels
