// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::precision {

/// An optimizer of 16-bit parameters that keeps masters and a loss scale. The
/// interface contains the functions that programs need in addition to
/// Optimizer's.
class LowPrecisionOptimizer : public optim::Optimizer {
 public:
  /// Returns the factor by which the caller multiplies the next loss, in fp32.
  /// It is 1 with bf16.
  [[nodiscard]] virtual double loss_scale() const noexcept = 0;
  /// Sets the loss scale; a dynamic scale continues from it. All ranks must
  /// pass the same value, in [2^-126, 2^127], between two steps. Local. Throws
  /// Error(kInvalidArgument), and Error(kFailedPrecondition) unless parameters
  /// are fp16.
  virtual void set_loss_scale(double scale) = 0;
  /// Returns the fp32 parameters, with layout.size() elements; empty if the
  /// parameters are their own masters.
  [[nodiscard]] virtual ConstView masters() const noexcept = 0;
  /// Rounds the masters to `params`, which has the parameters' dtype. Throws
  /// Error(kInvalidArgument) for another dtype or size.
  virtual void write_params(View params) const = 0;
  /// Returns whether step() accepts gradients of this dtype.
  [[nodiscard]] virtual bool takes_gradients(DType dtype) const noexcept = 0;
};

}  // namespace thinwire::precision
