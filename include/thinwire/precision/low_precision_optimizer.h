// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/core/dtype.h"
#include "thinwire/core/view.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::precision {

/// An optimizer of parameters of 16 bits that keeps what it updates, and a loss
/// scale: what programs need to know of it beside an Optimizer.
class LowPrecisionOptimizer : public optim::Optimizer {
 public:
  /// What the next loss is to be multiplied by, in fp32; 1 with bf16.
  [[nodiscard]] virtual double loss_scale() const noexcept = 0;
  /// Local, between two steps; all ranks give the same value, finite and > 0,
  /// and a dynamic scale continues from it. Throws Error(kInvalidArgument), and
  /// Error(kFailedPrecondition) unless parameters are fp16.
  virtual void set_loss_scale(double scale) = 0;
  /// fp32 parameters, layout.size() elements; empty where the parameters are
  /// their own masters.
  [[nodiscard]] virtual ConstView masters() const noexcept = 0;
  /// Rounds the masters to `params`, of the parameters' dtype; throws
  /// Error(kInvalidArgument) for another dtype or size.
  virtual void write_params(View params) const = 0;
  /// Whether step() takes gradients of this dtype.
  [[nodiscard]] virtual bool takes_gradients(DType dtype) const noexcept = 0;
};

}  // namespace thinwire::precision
