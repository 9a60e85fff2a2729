// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "thinwire/core/parameter_layout.h"
#include "thinwire/exchange/backward.h"
#include "thinwire/optim/optimizer.h"
#include "thinwire/zero/shard_layout.h"

namespace thinwire::zero {

/// An optimizer whose ranks keep a part of the states each. The interface has
/// what an Engine needs to know of ZeRO.
///
/// The caller can pass all gradients at once, like to any Optimizer:
/// step({params, grads}). Or it passes them one by one, and may free each at
/// once:
///
///   optimizer.begin_backward({.is_last = true});
///   ... optimizer.collect(k, gradient of parameter k) ...
///   optimizer.end_backward();
///   optimizer.step();
class ShardedOptimizer : public optim::Optimizer {
 public:
  /// Returns the factor by which the caller multiplies the next loss; 1 unless
  /// parameters are fp16.
  [[nodiscard]] virtual double loss_scale() const noexcept = 0;
  /// Sets the loss scale like LowPrecisionOptimizer::set_loss_scale().
  virtual void set_loss_scale(double scale) = 0;
  /// Returns the layout of the shards of the dense parameters.
  [[nodiscard]] virtual const ShardLayout& shards() const noexcept = 0;
  /// Returns the ranges whose elements are reduced together.
  [[nodiscard]] virtual std::vector<Range> buckets() const = 0;

  // ---- gradients one by one
  using Backward = exchange::Backward;
  using Late = exchange::LateGradients;
  /// Begins a backward. Throws Error(kFailedPrecondition) inside another
  /// backward, after the last one, and if the first one is missing or repeated.
  virtual void begin_backward(Backward which) = 0;
  /// Declares that the gradient of parameter `index` is complete for this
  /// backward. It is fp32 or has the parameters' dtype. It is copied, so the
  /// caller may free it. At most once per parameter and backward; a parameter
  /// without a gradient counts as zero. Buckets are sent as soon as they are
  /// full, in an order that does not depend on the order of calls.
  virtual void collect(std::size_t index, ConstView gradient) = 0;
  virtual void end_backward() = 0;
  /// Discards the gradients of a backward that failed, and begins the window
  /// anew. Throws Error(kCommFailure) if some of them have been sent already.
  /// Residuals that backwards have changed are restored if they are kept
  /// (AfterSkip). Otherwise they become 0 on this rank.
  virtual void cancel_backward() = 0;
  /// Returns the deferred gradients of the last backward.
  [[nodiscard]] virtual Late late() const noexcept = 0;

  using Optimizer::step;
  /// Runs a step with the gradients of collect().
  virtual optim::StepReport step() = 0;

  // ---- whole values of any owner; collective, fp32, in the parameter's shape.
  // Throw Error(kInvalidArgument) for an unknown name or key and for a wrong
  // size.
  /// Returns a parameter of the masters.
  [[nodiscard]] virtual std::vector<float> full_parameter(
      std::string_view name) = 0;
  /// Returns the gradient that the next step() will use, divided by the loss
  /// scale but not clipped. Call it between the last backward and step(), or
  /// with the `grads` that step() will get. No backward may follow before
  /// step(). Throws Error(kFailedPrecondition) at other times.
  [[nodiscard]] virtual std::vector<float> full_gradient(std::string_view name,
                                                         View grads = {}) = 0;
  /// Returns an array of the rule: "exp_avg" or "exp_avg_sq".
  [[nodiscard]] virtual std::vector<float> full_state(std::string_view name,
                                                      std::string_view key) = 0;
  /// Sets masters and parameters. All ranks pass the same values.
  virtual void set_full_parameter(std::string_view name,
                                  std::span<const float> values) = 0;
  virtual void set_full_gradient(std::string_view name,
                                 std::span<const float> values) = 0;
  virtual void set_full_state(std::string_view name, std::string_view key,
                              std::span<const float> values) = 0;

  /// Moves masters and states out of the memory that computes, until
  /// reload_states(). In between step() throws Error(kFailedPrecondition).
  /// Local. Throws Error(kUnavailable) if they cannot be moved.
  virtual void offload_states() = 0;
  virtual void reload_states() = 0;
};

}  // namespace thinwire::zero
