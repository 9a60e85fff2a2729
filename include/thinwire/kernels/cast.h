// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/core/view.h"

/// Conversions between fp32, fp16 and bf16, element by element. They are
/// single-threaded; callers cut the arrays. Throw Error(kInvalidArgument),
/// before anything is written, for another dtype or another size.
namespace thinwire::kernels {

/// Computes to[i] = from[i] by the conversions of core/dtype.h, which round to
/// nearest, ties to even. A conversion between fp16
/// and bf16 goes through float, which holds both, so it rounds once. The same
/// dtype is a copy, in which NaNs keep all their bits. The arrays must not
/// overlap, except that both may be the same memory if the dtype is the same.
/// Both functions convert each part of a View::joined() by itself.
void convert(ConstView from, View to);

/// Computes sum[i] = sum[i] + values[i], added in float and rounded once to the
/// dtype of `sum`. The arrays must not overlap.
void accumulate(View sum, ConstView values);

namespace ref {
void convert(ConstView from, View to);
void accumulate(View sum, ConstView values);
}  // namespace ref

}  // namespace thinwire::kernels
