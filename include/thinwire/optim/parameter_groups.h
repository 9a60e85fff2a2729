// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace thinwire::optim {

/// Throws Error(kInvalidArgument) unless it is finite and >= 0.
void require_learning_rate(double learning_rate);

/// Groups of a layout's parameters, with the options that may change. A new
/// value takes effect in the next step. Setters are local, so all ranks must
/// make the same calls. Functions throw Error(kInvalidArgument) if a group does
/// not exist or a value is out of range.
class ParameterGroups {
 public:
  virtual ~ParameterGroups() = default;

  [[nodiscard]] virtual std::size_t num_groups() const = 0;
  /// Sets the step size: finite, >= 0.
  virtual void set_learning_rate(std::size_t group, double learning_rate) = 0;
  [[nodiscard]] virtual double learning_rate(std::size_t group) const = 0;
  /// Sets the step size of every group.
  void set_learning_rate(double learning_rate);
  /// Sets the weight decay, finite and >= 0, in place of the options'. Unlike
  /// learning rates, it is not part of the state, so loading a state does not
  /// change it.
  virtual void set_weight_decay(std::size_t group, double weight_decay) = 0;
  [[nodiscard]] virtual double weight_decay(std::size_t group) const = 0;
  /// Sets the elements whose momentum is 0 from now on, in place of the
  /// options' mask. `mask` has one value per element in layout order, 0 for
  /// those elements and 1 otherwise; if it is empty, no element is masked. The
  /// mask is not part of the state.
  ///
  /// If ranks set different masks, the next step with an exchange throws
  /// Error(kInvalidArgument) on all of them and changes nothing. Otherwise
  /// masked elements are not compressed from that step on. Elements that the
  /// new mask no longer excludes become active with their next gradient. Throws
  /// Error(kInvalidArgument) for another size or if the optimizer does not
  /// compress.
  virtual void set_exp_avg_mask(std::size_t group, std::span<const float> mask);
};

/// Several objects with the same groups as one object. Setters set all of them.
/// Getters and masks use the first one.
class JoinedGroups : public ParameterGroups {
 public:
  using Parts = std::function<std::vector<ParameterGroups*>()>;
  /// Keeps `parts`, which every call uses and which returns at least one
  /// object.
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
