// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/core/view.h"

/// Conversions between fp32, fp16 and bf16, element by element. They are
/// single-threaded; callers divide the arrays among threads. Throw
/// Error(kInvalidArgument), before anything is written, for other dtypes or
/// unequal sizes.
namespace thinwire::kernels {

/// Computes to[i] = from[i] with the conversions of core/dtype.h, which round
/// to nearest, ties to even. A conversion between fp16 and bf16 goes through
/// float, which represents both exactly, so it rounds once. If the dtypes are
/// equal, the values are copied, and NaNs keep all their bits. The arrays must
/// not overlap, except that equal dtypes may share the same memory. Both
/// functions convert each part of a View::joined() separately.
void convert(ConstView from, View to);

/// Computes sum[i] = sum[i] + values[i], added in float and rounded once to the
/// dtype of `sum`. The arrays must not overlap.
void accumulate(View sum, ConstView values);

namespace ref {
void convert(ConstView from, View to);
void accumulate(View sum, ConstView values);
}  // namespace ref

}  // namespace thinwire::kernels
