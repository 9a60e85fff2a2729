// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace thinwire::optim {

/// The groups of a layout's parameters, and what may change of their options.
/// What is set acts from the next step on. It is local, so all ranks must do
/// the same. Functions throw Error(kInvalidArgument) for a group that does not
/// exist and for a value out of its range.
class ParameterGroups {
 public:
  virtual ~ParameterGroups() = default;

  [[nodiscard]] virtual std::size_t num_groups() const = 0;
  /// Sets the step size: finite, >= 0.
  virtual void set_learning_rate(std::size_t group, double learning_rate) = 0;
  [[nodiscard]] virtual double learning_rate(std::size_t group) const = 0;
  /// Sets it for every group.
  void set_learning_rate(double learning_rate);
  /// Sets the weight decay in place of what options say: finite, >= 0. Like all
  /// options, and unlike learning rates, it is no part of the state: loading
  /// one leaves it as it is.
  virtual void set_weight_decay(std::size_t group, double weight_decay) = 0;
  [[nodiscard]] virtual double weight_decay(std::size_t group) const = 0;
  /// Makes the momentum of some elements 0 from now on, in place of what
  /// options say. `mask` has one value per element in layout order, 0 there and
  /// 1 otherwise; empty: 1 everywhere. Like weight decay it is no part of the
  /// state. If ranks set different masks, the next step that exchanges anything
  /// throws Error(kInvalidArgument) on all of them before it changes anything.
  /// From that step on, masked elements leave the compression; those that the
  /// mask brings back return with their next gradient, as inactive elements do.
  /// Throws Error(kInvalidArgument) for another size, and unless the optimizer
  /// compresses.
  virtual void set_exp_avg_mask(std::size_t group, std::span<const float> mask);
};

/// Several of these that have the same groups, as one. Setters set all of them;
/// the first one answers, and takes masks.
class JoinedGroups : public ParameterGroups {
 public:
  using Parts = std::function<std::vector<ParameterGroups*>()>;
  /// `parts` is called every time, and returns at least one.
  explicit JoinedGroups(Parts parts) : parts_(std::move(parts)) {}

  [[nodiscard]] std::size_t num_groups() const override;
  using ParameterGroups::set_learning_rate;
  void set_learning_rate(std::size_t group, double learning_rate) override;
  [[nodiscard]] double learning_rate(std::size_t group) const override;
  void set_weight_decay(std::size_t group, double weight_decay) override;
  [[nodiscard]] double weight_decay(std::size_t group) const override;
  void set_exp_avg_mask(std::size_t group,
                        std::span<const float> mask) override;

 private:
  Parts parts_;
};

}  // namespace thinwire::optim
