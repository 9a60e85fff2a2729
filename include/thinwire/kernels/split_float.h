// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/core/dtype.h"

/// A float as a bf16 and the 16 bits that it lacks, exactly: with u the float's
/// bits,
///   high = (u + 0x8000) >> 16        the float rounded, half of an ulp away
///                                    from zero
///   low  = u & 0xffff
///   u    = (high << 16) + low as a signed number
/// all modulo 2^32. Rounded to even, a tie could not be undone. Finite floats
/// below 3.38e38 have a finite `high`; a NaN's need not be one.
/// Single-threaded; arrays do not overlap.
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
