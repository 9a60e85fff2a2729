// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "thinwire/comm/transport.h"
#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"

namespace thinwire::comm {

/// A single-threaded reduction of values of one dtype.
struct Reducer {
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kFloat32;
  int ranks = 1;  ///< The number of ranks in the mean of kMean.
};

/// Computes output[i] = sources[0][i] op sources[1][i] op ..., in this order,
/// from at least one source. Half precision is reduced in fp32 and rounded once
/// at the end, or not at all if output is fp32. fp32 sources that are unrounded
/// sums of half-precision values may have half-precision output. In all other
/// cases sources and output have the same dtype. Integers wrap around. kMean,
/// which excludes integers, multiplies the sum by 1 / ranks before it is
/// rounded. `output` may be one of the sources if it has their dtype.
void reduce_in_order(const Reducer& reducer,
                     std::span<const void* const> sources, View output);

/// Returns the dtype in which values of `dtype` are summed and kept unrounded.
[[nodiscard]] DType sum_dtype(ReduceOp op, DType dtype) noexcept;

}  // namespace thinwire::comm
