// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "thinwire/comm/transport.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"

namespace thinwire::comm {

/// A reduction of values of this dtype, for one thread.
struct Reducer {
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  int ranks = 1;  ///< kMean: whose mean it is.
};

/// output[i] = sources[0][i] op sources[1][i] op ..., in this order; there is
/// at least one source. Half precision is reduced in float and rounded once, or
/// not at all where output is float. Output is of half precision, too, for the
/// sums of such values that float sources are. All others have an output of
/// their own dtype. Integers wrap around. kMean, which is not for integers,
/// multiplies the sum by 1 / ranks before that rounding. `output` may be a
/// source of its dtype.
void reduce_in_order(const Reducer& reducer,
                     std::span<const void* const> sources, View output);

/// Returns the dtype in which sums of this dtype are formed and kept unrounded.
[[nodiscard]] DType sum_dtype(ReduceOp op, DType dtype) noexcept;

}  // namespace thinwire::comm
