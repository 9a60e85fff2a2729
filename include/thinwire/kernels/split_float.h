// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/core/dtype.h"

/// Exact conversion of a float to a bf16 and the remaining 16 bits. With u as
/// the float's bits, all modulo 2^32:
///   high = (u + 0x8000) >> 16        the float rounded, half of an ulp away
///                                    from zero
///   low  = u & 0xffff
///   u    = (high << 16) + low as a signed number
/// Ties are not rounded to even, because that could not be undone. Finite
/// floats below 3.38e38 have a finite `high`; the `high` of a NaN need not be a
/// NaN. Single-threaded; arrays do not overlap.
namespace thinwire::kernels {

void split_float(const float* values, BFloat16* high, std::uint16_t* low,
                 std::size_t size);
void join_float(const BFloat16* high, const std::uint16_t* low, float* values,
                std::size_t size);

namespace ref {
void split_float(const float* values, BFloat16* high, std::uint16_t* low,
                 std::size_t size);
void join_float(const BFloat16* high, const std::uint16_t* low, float* values,
                std::size_t size);
}  // namespace ref

}  // namespace thinwire::kernels
