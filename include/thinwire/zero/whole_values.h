// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "thinwire/core/parameter_layout.h"
#include "thinwire/core/view.h"
#include "thinwire/exchange/gradient_window.h"

namespace thinwire::zero {

/// Access to complete values of parameters whose elements belong to several
/// ranks. Getters gather them from their owners; setters must get the same
/// values on all ranks. All calls are collective. Values are fp32, in the
/// parameter's shape. Functions throw Error(kInvalidArgument) for an unknown
/// name or key and for a wrong size.
class WholeValues {
 public:
  virtual ~WholeValues() = default;

  /// Returns the master values of a parameter.
  [[nodiscard]] std::vector<float> parameter(std::string_view name);
  /// Returns the gradient that the next step() will use, divided by the loss
  /// scale but not clipped. Call it between the last backward and step(). At
  /// stage 1 of zero::ZeroOptimizer, it may also be called with the `grads`
  /// that step() will get. No backward may follow before step(). Throws
  /// Error(kFailedPrecondition) at other times.
  [[nodiscard]] std::vector<float> gradient(std::string_view name,
                                            View grads = {});
  /// Returns an array of the rule: "exp_avg" or "exp_avg_sq".
  [[nodiscard]] std::vector<float> state(std::string_view name,
                                         std::string_view key);

  /// Sets masters and parameters.
  void set_parameter(std::string_view name, std::span<const float> values);
  void set_gradient(std::string_view name, std::span<const float> values);
  void set_state(std::string_view name, std::string_view key,
                 std::span<const float> values);

 protected:
  /// Creates the access to a model whose gradients `window` receives one by
  /// one. Both arguments must outlive this object. `takes_arrays` is whether
  /// gradient() accepts the array of all gradients.
  WholeValues(const ParameterLayout& layout, exchange::GradientWindow& window,
              bool takes_arrays)
      : layout_(layout), window_(window), takes_arrays_(takes_arrays) {}
  WholeValues(const WholeValues&) = delete;
  WholeValues& operator=(const WholeValues&) = delete;

  /// Throws Error(kFailedPrecondition) unless gradients for a step are in the
  /// window or in `grads`. The message begins with `caller`.
  virtual void require_gradients(std::string_view caller, View grads) const;

 private:
  /// Returns values of a parameter: "param", "grad" or a state of the rule.
  [[nodiscard]] virtual std::vector<float> read(std::size_t parameter,
                                                std::string_view what,
                                                View grads) = 0;
  /// Sets values of a parameter. `values` has the parameter's size.
  virtual void write(std::size_t parameter, std::string_view what,
                     std::span<const float> values) = 0;

  const ParameterLayout& layout_;
  exchange::GradientWindow& window_;
  const bool takes_arrays_;
};

}  // namespace thinwire::zero
