// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "thinwire/config/learning_rate.h"
#include "thinwire/optim/parameter_groups.h"

namespace thinwire::engine {

/// Learning rates of an Engine's groups of parameters. Local, so all ranks must
/// make the same calls.
class LearningRates {
 public:
  virtual ~LearningRates() = default;

  /// Sets the rate of this group, or of every group, from the next step on. It
  /// replaces the schedule's until another rate is set. Part of the state.
  /// Throws Error(kInvalidArgument) unless the rate is finite and >= 0, and if
  /// the group does not exist.
  virtual void set(std::size_t group, double learning_rate) = 0;
  virtual void set(double learning_rate) = 0;
  /// Replaces the configuration's schedule, and cancels rates set by hand. An
  /// empty schedule restores the configuration's. It is no part of the state,
  /// so set it again before a run resumes. If it returns an invalid rate,
  /// step() throws Error(kInvalidArgument) and changes nothing.
  virtual void set_schedule(config::LearningRateFunction schedule) = 0;
  /// Returns the groups, whose weight decays and masks can be set for the next
  /// step. All ranks must set the same.
  [[nodiscard]] virtual optim::ParameterGroups& groups() noexcept = 0;
};

}  // namespace thinwire::engine
