// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "thinwire/config/learning_rate.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/engine/learning_rates.h"
#include "thinwire/optim/parameter_groups.h"

namespace thinwire::engine {

/// Learning rates of an optimizer. For each group the configuration's schedule,
/// the caller's schedule, or a rate set by hand decides.
class EngineRates final : public LearningRates {
 public:
  explicit EngineRates(config::LearningRateSchedule schedule)
      : schedule_(std::move(schedule)) {}

  /// Uses the present rates of `groups` as those of their options. The groups
  /// must outlive this object.
  void begin(optim::ParameterGroups& groups);
  /// Sets the rates of the step after `applied_steps` others. Throws
  /// Error(kInvalidArgument) for an invalid rate, before any is set.
  void apply(std::int64_t applied_steps);

  void set(std::size_t group, double learning_rate) override;
  void set(double learning_rate) override;
  void set_schedule(config::LearningRateFunction schedule) override;
  [[nodiscard]] optim::ParameterGroups& groups() noexcept override {
    return *groups_;
  }

  /// Saves the rates that were set by hand.
  void save(StateDict& state) const;
  [[nodiscard]] const std::vector<std::optional<double>>& by_hand() const {
    return by_hand_;
  }
  /// Sets the rates in `by_hand`, and the other rates to those of the options.
  void restore(std::vector<std::optional<double>> by_hand);
  /// Throws Error(kCorruptCheckpoint) if load() cannot use the state.
  void require_loadable(const StateDict& state) const;
  /// Reads the rates that were set by hand from a state that the optimizer has
  /// loaded.
  void load(const StateDict& state);

 private:
  const config::LearningRateSchedule schedule_;
  optim::ParameterGroups* groups_ = nullptr;
  config::LearningRateFunction own_;            // if empty, the configuration's
  std::vector<double> base_;                    // per group, of its options
  std::vector<double> applied_;                 // per group, as last set here
  std::vector<std::optional<double>> by_hand_;  // per group
};

}  // namespace thinwire::engine
