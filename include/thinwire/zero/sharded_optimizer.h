// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "thinwire/exchange/gradient_window.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/zero/shard_layout.h"
#include "thinwire/zero/whole_values.h"

namespace thinwire::zero {

/// An optimizer in which each rank keeps a part of the states. The interface
/// contains the functions of ZeRO that an Engine needs.
///
/// The caller can pass all gradients at once, as with any Optimizer:
/// step({params, grads}). Alternatively it passes them one by one and may free
/// each immediately:
///   optimizer.gradients().begin({.is_last = true});
///   ... optimizer.gradients().collect(k, gradient of parameter k) ...
///   optimizer.gradients().end();
///   optimizer.step();
class ShardedOptimizer : public optim::Optimizer {
 public:
  /// Returns the factor by which the caller multiplies the next loss. It is 1
  /// unless parameters are fp16.
  [[nodiscard]] virtual double loss_scale() const noexcept = 0;
  /// Sets the loss scale like LowPrecisionOptimizer::set_loss_scale().
  virtual void set_loss_scale(double scale) = 0;
  /// Returns the layout of the shards of the dense parameters.
  [[nodiscard]] virtual const ShardLayout& shards() const noexcept = 0;
  /// Returns the window that receives gradients one by one. Each is fp32 or has
  /// the parameters' dtype. If a window is cancelled, the residuals that its
  /// backwards have changed are restored. If they are not kept (AfterSkip),
  /// they become 0 on this rank.
  [[nodiscard]] virtual exchange::GradientWindow& gradients() noexcept = 0;
  /// Returns access to whole values of any owner.
  [[nodiscard]] virtual WholeValues& whole_values() noexcept = 0;

  using Optimizer::step;
  /// Runs a step with the gradients of gradients().
  virtual optim::StepReport step() = 0;
};

}  // namespace thinwire::zero
