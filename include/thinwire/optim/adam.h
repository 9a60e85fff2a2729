// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/core/dtype.h"
#include "thinwire/optim/update_rule.h"

namespace thinwire::comm {
class Communicator;
}
namespace thinwire::kernels {
struct AdamCoefficients;
}

namespace thinwire::optim {

/// Options of one group of parameters. Unset fields have the values of
/// AdamOptions.
struct AdamGroup {
  std::optional<double> learning_rate{};
  std::optional<double> beta1{};
  std::optional<double> beta2{};
  std::optional<double> epsilon{};
  std::optional<double> weight_decay{};
  /// For experts, the ranks that hold this group's parameters; null if all
  /// ranks do. It must outlive all objects made from these options. Update
  /// rules ignore it.
  comm::Communicator* communicator = nullptr;

  bool operator==(const AdamGroup&) const = default;
};

/// Settings of Adam, written with designated initializers:
///  Adam rule(layout, {.learning_rate = 1.5e-3, .beta2 = 0.99});
/// They are doubles, because coefficients such as 1 - beta are computed in
/// double and rounded to float once.
struct AdamOptions {
  double learning_rate = 1e-3;  ///< Step size, finite, >= 0.
  double beta1 = 0.9;           ///< Momentum decay per step, in [0, 1).
  double beta2 = 0.999;         ///< Variance decay per step, in [0, 1).
  double epsilon = 1e-8;        ///< Positive; keeps the denominator above 0.
  double weight_decay = 0;      ///< Per step, finite, >= 0.
  /// Whether decay is added to the update (AdamW, arXiv:1711.05101). Otherwise
  /// it is added to the gradient (L2).
  bool decoupled_decay = true;
  bool bias_correction = true;
  /// Whether the denominator is sqrt(v + eps) instead of sqrt(v) + eps.
  bool epsilon_inside_sqrt = false;
  /// Dtype of exp_avg and exp_avg_sq: kFloat32, or that of 16-bit parameters.
  /// Arithmetic is in float, and stored values are rounded to nearest even.
  DType state_dtype = DType::kFloat32;
  /// One entry per group of the layout, or none if all groups are alike.
  std::vector<AdamGroup> groups{};

  /// Checks the options for a layout of `num_groups` groups. Throws
  /// Error(kInvalidArgument) naming the field, its range and its value.
  void validate(std::size_t num_groups) const;

  bool operator==(const AdamOptions&) const = default;
};

/// Adam and AdamW. Source: Kingma and Ba, arXiv:1412.6980, Algorithm 1. The
/// variance is corrected for bias before the square root and epsilon.
class Adam final : public UpdateRule {
 public:
  /// Allocates exp_avg and exp_avg_sq, both 0: 8 bytes per parameter, or 4 with
  /// a 16-bit state_dtype. Throws Error(kInvalidArgument) for an option out of
  /// range.
  Adam(ParameterLayout layout, AdamOptions options)
      : Adam(std::move(layout), std::move(options), Moments::kOwn) {}
  /// Whether the rule has moments. With kNone it only provides its options and
  /// coefficients, and takes no steps.
  enum class Moments { kOwn, kNone };
  Adam(ParameterLayout layout, AdamOptions options, Moments moments);

  [[nodiscard]] std::string_view name() const noexcept override;
  [[nodiscard]] const ParameterLayout& layout() const noexcept override;
  [[nodiscard]] std::string describe() const override;
  void apply_part(std::int64_t step, Range part, const UpdateArrays& arrays,
                  ThreadPool& pool) override;
  /// Returns whether parameters may have this dtype. 16-bit parameters are
  /// rounded at every step, and low_precision is then unused.
  [[nodiscard]] bool takes(DType params) const noexcept override;
  [[nodiscard]] std::size_t num_groups() const noexcept override;
  void set_learning_rate(std::size_t group, double learning_rate) override;
  [[nodiscard]] double learning_rate(std::size_t group) const override;
  void set_weight_decay(std::size_t group, double weight_decay) override;
  [[nodiscard]] double weight_decay(std::size_t group) const override;
  /// Returns the array "exp_avg" or "exp_avg_sq".
  [[nodiscard]] View state(std::string_view key) override;
  void add_to(State& state, Sharing sharing,
              const std::vector<Range>& elements) const override;
  [[nodiscard]] Adoption adopt(StateDict& state) override;

  /// Returns the step size of every group.
  [[nodiscard]] const std::vector<double>& learning_rates() const noexcept {
    return learning_rates_;
  }
  /// Returns the group's options with unset fields filled in. Its weight decay
  /// is the present one, but its learning rate is that of the options.
  [[nodiscard]] AdamOptions group_options(std::size_t group) const;
  /// Returns the coefficients of step number `step` for one group.
  [[nodiscard]] kernels::AdamCoefficients coefficients(std::size_t group,
                                                       std::int64_t step,
                                                       float grad_scale) const;

  /// Return the first and the second moment, flat arrays of layout().size()
  /// elements. They are empty with Moments::kNone, and after the caller has
  /// moved them out.
  [[nodiscard]] Buffer& exp_avg() noexcept { return exp_avg_; }
  [[nodiscard]] Buffer& exp_avg_sq() noexcept { return exp_avg_sq_; }
  [[nodiscard]] const Buffer& exp_avg() const noexcept { return exp_avg_; }
  [[nodiscard]] const Buffer& exp_avg_sq() const noexcept {
    return exp_avg_sq_;
  }

 private:
  // Updates elements of one group; `arrays` holds their views.
  void apply_range(Range range, const UpdateArrays& arrays,
                   const kernels::AdamCoefficients& c);
  void apply_widened(Range range, const UpdateArrays& arrays,
                     const kernels::AdamCoefficients& c);

  ParameterLayout layout_;
  AdamOptions options_;
  std::vector<double> learning_rates_;
  Buffer exp_avg_;
  Buffer exp_avg_sq_;
};

}  // namespace thinwire::optim
