// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/core/buffer.h"
#include "thinwire/optim/update_rule.h"

namespace thinwire::optim {

/// Settings of Nesterov.
struct NesterovOptions {
  double learning_rate = 1;  ///< Step size, finite, >= 0.
  double momentum = 0;       ///< Decay of the momentum per step, in [0, 1).

  /// Checks the options. Throws Error(kInvalidArgument) naming the field, its
  /// range and its value.
  void validate() const;
};

/// SGD with Nesterov's momentum. For each element with gradient g, every
/// operation is rounded to fp32:
///  u = momentum u + g;  p = p - learning_rate (g + momentum u)
/// This is torch.optim.SGD with nesterov=True and dampening=0. Source:
/// Sutskever et al., "On the importance of initialization and momentum in deep
/// learning", 2013, in the form that frameworks use. Weight decay is always 0.
class Nesterov final : public UpdateRule {
 public:
  /// Allocates the momentum u, 4 bytes per parameter. Throws
  /// Error(kInvalidArgument) for an option out of range.
  Nesterov(ParameterLayout layout, const NesterovOptions& options);

  [[nodiscard]] std::string_view name() const noexcept override;
  [[nodiscard]] const ParameterLayout& layout() const noexcept override;
  [[nodiscard]] std::string describe() const override;
  void apply_part(std::int64_t step, Range part, const UpdateArrays& arrays,
                  ThreadPool& pool) override;
  [[nodiscard]] std::size_t num_groups() const override;
  void set_learning_rate(std::size_t group, double learning_rate) override;
  [[nodiscard]] double learning_rate(std::size_t group) const override;
  /// Accepts only 0.
  void set_weight_decay(std::size_t group, double weight_decay) override;
  [[nodiscard]] double weight_decay(std::size_t group) const override;
  /// Returns the array "momentum".
  [[nodiscard]] View state(std::string_view key) override;
  /// Adds the array "momentum". Learning rates are not part of the state.
  void add_to(State& state, Sharing sharing,
              const std::vector<Range>& elements) const override;
  [[nodiscard]] Adoption adopt(StateDict& state) override;

 private:
  ParameterLayout layout_;
  double momentum_;
  std::vector<double> learning_rates_;  // one per group
  Buffer buffer_;                       // u
};

}  // namespace thinwire::optim
