// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"

namespace thinwire::deepspeed {

/// Scaling of gradients before and after the sum over the ranks.
struct SumScaling {
  float divisor = 1;  ///< Each rank divides by it before the sum.
  float before = 1;   ///< Each rank multiplies by it before the sum.
  float factor = 1;   ///< The sum is multiplied by it.
  /// Values are scaled in the dtype of the wire, otherwise in their own.
  bool on_wire = false;
};

/// Returns the scaling of a mean without reduce-scatter, which divides by
/// `ranks` before the sum (prescale) or after it. In the second case the factor
/// `predivide` is divided before the sum, so that 16-bit sums overflow less
/// often.
[[nodiscard]] inline SumScaling sum_scaling(bool prescale, double predivide,
                                            double ranks) {
  if (prescale) return {.divisor = static_cast<float>(ranks), .on_wire = true};
  return {.before = static_cast<float>(1 / predivide),
          .factor = static_cast<float>(predivide / ranks),
          .on_wire = true};
}

/// Throws Error(kInvalidArgument) unless finite and > 0.
void require_predivide(double predivide);

/// Collective: the sum over the ranks as DeepSpeed forms it. Quotients are
/// rounded to the dtype of `values`, sums in rank order to `wire` at every
/// addition. Piece r of `values`, counts[r] elements, goes to rank r; returned
/// is this rank's, in the dtype of `values`.
[[nodiscard]] Buffer rounded_sum(comm::Communicator& comm, ConstView values,
                                 std::span<const std::size_t> counts,
                                 const SumScaling& scaling, DType wire);

/// A copy in another dtype, or the same.
[[nodiscard]] Buffer converted(ConstView values, DType dtype);

}  // namespace thinwire::deepspeed
