// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "thinwire/comm/transport.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"

namespace thinwire::comm {

/// output[i] = sources[0][i] op sources[1][i] op ..., in this order; there is
/// at least one source, all of this dtype. Half precision is reduced in float
/// and rounded once, or not at all where output is float; all others have an
/// output of their own dtype. Integers wrap around. kMean, which is not for
/// integers, multiplies the sum by 1 / sources.size() before that rounding.
/// `output` may be a source of its dtype.
void reduce_in_order(ReduceOp op, DType dtype,
                     std::span<const void* const> sources, View output);

}  // namespace thinwire::comm
