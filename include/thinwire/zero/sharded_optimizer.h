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

/// An optimizer each of whose ranks keeps a part of the states: what an Engine
/// needs to know of ZeRO.
///
/// Gradients come whole, as for any Optimizer: step({params, grads}). Or they
/// are handed over one by one, each of which may be freed at once:
///
///   optimizer.begin_backward({.is_last = true});
///   ... optimizer.collect(k, gradient of parameter k) ...
///   optimizer.end_backward();
///   optimizer.step();
class ShardedOptimizer : public optim::Optimizer {
 public:
  /// What the next loss is to be multiplied by; 1 unless parameters are fp16.
  [[nodiscard]] virtual double loss_scale() const noexcept = 0;
  /// As precision::LowPrecisionOptimizer's.
  virtual void set_loss_scale(double scale) = 0;
  /// Of the dense parameters.
  [[nodiscard]] virtual const ShardLayout& shards() const noexcept = 0;
  /// What is reduced together.
  [[nodiscard]] virtual std::vector<Range> buckets() const = 0;

  // ---- gradients one by one
  using Backward = exchange::Backward;
  using Late = exchange::LateGradients;
  /// Throws Error(kFailedPrecondition) inside a backward, after the last one,
  /// and if the first one is missing or comes twice.
  virtual void begin_backward(Backward which) = 0;
  /// The gradient of parameter `index`, fp32 or of the parameters' dtype, is
  /// complete for this backward; it is copied, and may go. At most once per
  /// backward; a parameter that does not come has gradient 0. Buckets are sent
  /// as they fill, in an order that does not depend on that of the calls.
  virtual void collect(std::size_t index, ConstView gradient) = 0;
  virtual void end_backward() = 0;
  /// This backward has failed: the window begins anew. Throws
  /// Error(kCommFailure) if some of it has been sent already. Residuals that
  /// backwards have been added to are as before where they are kept
  /// (AfterSkip), else 0 on this rank.
  virtual void cancel_backward() = 0;
  /// Of the last backward.
  [[nodiscard]] virtual Late late() const noexcept = 0;

  using Optimizer::step;
  /// step() of what was handed over.
  virtual optim::StepReport step() = 0;

  // ---- whole values, whoever owns them; collective, fp32, in the shape of the
  // parameter. Throw Error(kInvalidArgument) for a name or key that is unknown
  // or a wrong size.
  /// Of the masters.
  [[nodiscard]] virtual std::vector<float> full_parameter(
      std::string_view name) = 0;
  /// The gradient that the next step() will take, divided by the loss scale but
  /// not clipped. Between the last backward and step(), or with `grads` as
  /// step() is then to be handed them; Error(kFailedPrecondition) else. No
  /// backward may come after it until step().
  [[nodiscard]] virtual std::vector<float> full_gradient(std::string_view name,
                                                         View grads = {}) = 0;
  /// "exp_avg", "exp_avg_sq": the arrays of the rule.
  [[nodiscard]] virtual std::vector<float> full_state(std::string_view name,
                                                      std::string_view key) = 0;
  /// All ranks give the same values. Sets masters and parameters.
  virtual void set_full_parameter(std::string_view name,
                                  std::span<const float> values) = 0;
  virtual void set_full_gradient(std::string_view name,
                                 std::span<const float> values) = 0;
  virtual void set_full_state(std::string_view name, std::string_view key,
                              std::span<const float> values) = 0;

  /// Masters and states leave the memory that computes until reload_states();
  /// step() throws Error(kFailedPrecondition) in between. Local. Throws
  /// Error(kUnavailable) where they cannot.
  virtual void offload_states() = 0;
  virtual void reload_states() = 0;
};

}  // namespace thinwire::zero
