// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/core/view.h"

/// Between fp32, fp16 and bf16, element by element. Single-threaded; callers
/// cut the arrays. Throws Error(kInvalidArgument), before anything is written,
/// for another dtype or another size.
namespace thinwire::kernels {

/// to[i] = from[i], as the conversions of core/dtype.h have it, NaNs with all
/// their bits: rounded to nearest, ties to even. From fp16 to bf16 or back goes
/// through float, which holds both, and so rounds once. The same dtype is a
/// copy. The arrays must not overlap, except that both may be the same memory
/// where the dtype is the same. Of a View::joined(), here and below, each part
/// by itself.
void convert(ConstView from, View to);

/// sum[i] = sum[i] + values[i], added in float and rounded once to the dtype of
/// `sum`. They must not overlap.
void accumulate(View sum, ConstView values);

namespace ref {
void convert(ConstView from, View to);
void accumulate(View sum, ConstView values);
}  // namespace ref

}  // namespace thinwire::kernels
