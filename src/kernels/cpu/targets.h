// SPDX-License-Identifier: Apache-2.0
#pragma once

// Include this before any Highway header. The kernels keep vectors in arrays,
// which is impossible for vectors of unknown length, so Arm uses NEON and
// RISC-V the scalar target. Every source must see the same list, or forcing a
// target would mean different targets in different files.
#define THINWIRE_UNUSED_TARGETS \
  (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

#if (defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)) && \
    !defined(THINWIRE_TEST_ALL)
// Sanitizers need minutes per target, and all targets access memory alike, so
// two vector widths suffice.
#define HWY_DISABLED_TARGETS \
  (THINWIRE_UNUSED_TARGETS | HWY_SSSE3 | HWY_SSE4 | HWY_AVX3)
#else
#define HWY_DISABLED_TARGETS THINWIRE_UNUSED_TARGETS
#endif

// Calls the code of the current target. Kernels call it in no other way, so
// that THINWIRE_SIMD holds for the first call, too.
#define THINWIRE_DISPATCH(function) \
  (::thinwire::kernels::choose_cpu_target(), HWY_DYNAMIC_DISPATCH(function))

namespace thinwire::kernels {

/// Makes the kernels use the target that THINWIRE_SIMD names. Later calls do
/// nothing, unless this one threw. Throws Error(kInvalidArgument) with the
/// names of the supported targets if the name is not among them.
void choose_cpu_target();

}  // namespace thinwire::kernels
