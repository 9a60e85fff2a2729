// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"

namespace thinwire::deepspeed {

/// Scaling of gradients before and after the sum over the ranks.
struct SumScaling {
  float divisor = 1;  ///< Divisor that each rank applies before the sum.
  float before = 1;   ///< Factor that each rank applies before the sum.
  float factor = 1;   ///< Factor that is applied to the sum.
  /// Whether values are scaled in the dtype of the wire instead of that of
  /// `values`.
  bool on_wire = false;
};

/// Returns the scaling of a mean without reduce-scatter. If `prescale`, each
/// rank divides by `ranks` before the sum. Otherwise the sum is divided, except
/// for the factor `predivide`, which is divided before the sum so that 16-bit
/// sums overflow less often.
[[nodiscard]] inline SumScaling sum_scaling(bool prescale, double predivide,
                                            double ranks) {
  if (prescale) return {.divisor = static_cast<float>(ranks), .on_wire = true};
  return {.before = static_cast<float>(1 / predivide),
          .factor = static_cast<float>(predivide / ranks),
          .on_wire = true};
}

/// Throws Error(kInvalidArgument) unless `predivide` is finite and > 0.
void require_predivide(double predivide);

/// Returns the sum over the ranks, rounded as DeepSpeed does. Quotients are
/// rounded to the dtype of `values`. Sums are added in rank order and rounded
/// to `wire` at every addition. Piece r of `values`, with counts[r] elements,
/// is for rank r; the result is this rank's piece, in the dtype of `values`.
/// Collective.
[[nodiscard]] Buffer rounded_sum(comm::Communicator& comm, ConstView values,
                                 std::span<const std::size_t> counts,
                                 const SumScaling& scaling, DType wire);

/// Returns a copy in `dtype`.
[[nodiscard]] Buffer converted(ConstView values, DType dtype);

}  // namespace thinwire::deepspeed
