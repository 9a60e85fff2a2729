// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "thinwire/optim/adam.h"

namespace thinwire::optim {

/// Options of one group of parameters. Unset fields are those of LambOptions.
struct LambGroup : AdamGroup {
  std::optional<double> max_coeff{};
  std::optional<double> min_coeff{};

  bool operator==(const LambGroup&) const = default;
};

/// Settings of Lamb:
///   Lamb rule(layout, {.learning_rate = 1e-2, .weight_decay = 0.01});
struct LambOptions {
  double learning_rate = 1e-3;  ///< Step size, finite, >= 0.
  double beta1 = 0.9;           ///< Momentum decay per step, in [0, 1).
  double beta2 = 0.999;         ///< Variance decay per step, in [0, 1).
  double epsilon = 1e-8;        ///< Positive; keeps the denominator above 0.
  double weight_decay = 0;      ///< Decoupled (AdamW), finite, >= 0.
  double max_coeff = 10;        ///< Largest trust ratio, >= min_coeff.
  double min_coeff = 0.01;      ///< Smallest trust ratio, >= 0.
  bool bias_correction = true;
  bool epsilon_inside_sqrt = false;  ///< Use sqrt(v + eps).
  /// One entry per group of the layout, or none if all groups are alike.
  std::vector<LambGroup> groups{};

  /// Checks the options for a layout of `num_groups` groups. Throws
  /// Error(kInvalidArgument) naming the field, its range and its value.
  void validate(std::size_t num_groups) const;

  bool operator==(const LambOptions&) const = default;
};

/// Limits of a trust ratio.
struct TrustLimits {
  double min_coeff = 0.01;
  double max_coeff = 10;
};

/// Factor by which LAMB multiplies the step of one parameter.
struct TrustRatio {
  /// ||p|| / ||u||, clamped to the limits; 1 if a norm is 0.
  double value = 1;
  /// Whether both norms were above 0.
  bool computed = false;
};

/// LAMB: Adam's update u plus decoupled decay, in a step of length lr ||p|| /
/// ||u|| for each parameter. Source: You et al., arXiv:1904.00962, Algorithm 2.
/// Departures: the ratio is clamped, and norms are summed in double in a fixed
/// order.
class Lamb final : public UpdateRule {
 public:
  /// Allocates 8 bytes per parameter, like Adam.
  Lamb(ParameterLayout layout, const LambOptions& options);

  [[nodiscard]] std::string_view name() const noexcept override;
  [[nodiscard]] const ParameterLayout& layout() const noexcept override;
  [[nodiscard]] std::string describe() const override;
  /// Runs both passes at once for parameters that fit into a cache.
  void apply(std::int64_t step, const UpdateArrays& arrays,
             ThreadPool& pool) override;
  void apply_part(std::int64_t step, Range part, const UpdateArrays& arrays,
                  ThreadPool& pool) override;
  [[nodiscard]] bool needs_norms() const noexcept override { return true; }
  void measure(std::int64_t step, std::span<const NormCell> cells,
               const UpdateArrays& arrays, std::span<NormSums> sums) override;
  void set_norms(std::int64_t step,
                 std::span<const NormSums> parameters) override;
  [[nodiscard]] std::vector<double> lamb_coeffs() const override;
  [[nodiscard]] double lamb_coeff(std::size_t group,
                                  const NormSums& sums) const override;
  [[nodiscard]] std::size_t num_groups() const noexcept override;
  void set_learning_rate(std::size_t group, double learning_rate) override;
  [[nodiscard]] double learning_rate(std::size_t group) const override;
  void set_weight_decay(std::size_t group, double weight_decay) override;
  [[nodiscard]] double weight_decay(std::size_t group) const override;
  [[nodiscard]] View state(std::string_view key) override;
  void add_to(State& state, Sharing sharing,
              const std::vector<Range>& elements) const override;
  [[nodiscard]] Adoption adopt(StateDict& state) override;

 private:
  Adam adam_;                        // moments, groups and learning rates
  std::vector<TrustLimits> limits_;  // per group
  std::vector<TrustRatio> ratios_;
  std::int64_t norms_of_ = 0;  // the step for which set_norms() was called
};

/// Returns the ratio of the norms `params` and `update`, clamped to [min_coeff,
/// max_coeff].
[[nodiscard]] TrustRatio trust_ratio(double params, double update,
                                     double min_coeff, double max_coeff);

}  // namespace thinwire::optim
