// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "thinwire/config/learning_rate.h"
#include "thinwire/core/state_dict.h"
#include "thinwire/optim/parameter_groups.h"

namespace thinwire::engine {

/// Who decides on an optimizer's learning rates: the configuration's schedule,
/// the caller's, or the caller's hand, group by group.
class LearningRates {
 public:
  explicit LearningRates(config::LearningRateSchedule schedule)
      : schedule_(std::move(schedule)) {}

  /// Takes the rates that `groups` have for those of their options.
  void begin(const optim::ParameterGroups& groups);
  /// Before the step after `applied_steps` others. Throws
  /// Error(kInvalidArgument) for a rate that is none, before any is set.
  void apply(optim::ParameterGroups& groups, std::int64_t applied_steps);

  /// From the next step on, until set() or set_schedule().
  void set(optim::ParameterGroups& groups, std::size_t group, double rate);
  /// Empty: the configuration's.
  void set_schedule(config::LearningRateFunction schedule);

  /// What was set by hand.
  void save(StateDict& state) const;
  [[nodiscard]] const std::vector<std::optional<double>>& by_hand() const {
    return by_hand_;
  }
  /// Takes it back, and begins with the rates of the options again.
  void restore(optim::ParameterGroups& groups,
               std::vector<std::optional<double>> by_hand);
  /// Error(kCorruptCheckpoint) where load() would not do.
  void require_loadable(const StateDict& state) const;
  /// The optimizer of these groups has been loaded.
  void load(const StateDict& state, const optim::ParameterGroups& groups);

 private:
  const config::LearningRateSchedule schedule_;
  config::LearningRateFunction own_;
  std::vector<double> base_;                    // per group, of its options
  std::vector<double> applied_;                 // per group, as we left it
  std::vector<std::optional<double>> by_hand_;  // per group
};

}  // namespace thinwire::engine
