// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "thinwire/comm/transport.h"
#include "thinwire/core/dtype.h"

namespace thinwire::comm {

/// output[i] = sources[0][i] op sources[1][i] op ..., in this order, for
/// `count` elements; there is at least one source. Half precision is reduced in
/// float and rounded once; integers wrap around. kMean, which is not for
/// integers, multiplies the sum by 1 / sources.size() before that rounding.
/// `output` may be a source.
void reduce_in_order(ReduceOp op, DType dtype,
                     std::span<const void* const> sources, void* output,
                     std::size_t count);

}  // namespace thinwire::comm
