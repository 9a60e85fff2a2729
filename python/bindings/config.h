// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bindings.h"
#include "thinwire/config/config.h"

namespace thinwire::python {

/// Objects of one of the types that a variant may hold.
using OptimizerObject = nb::typed<nb::object, config::OptimizerConfig>;
using ScheduleObject =
    nb::typed<nb::object, decltype(config::LearningRateSchedule::shape)>;

/// _core.Config. The two members that may be of several types are Python
/// objects, so that a reference to one stays good when another one takes its
/// place; those of the base class are not used.
class Settings : public config::Config {
 public:
  Settings() : Settings(config::Config()) {}
  explicit Settings(const config::Config& config);

  [[nodiscard]] OptimizerObject chosen_optimizer() const {
    return {optimizer_};
  }
  [[nodiscard]] ScheduleObject chosen_schedule() const { return {schedule_}; }
  /// Throw TypeError naming the types there are.
  void choose_optimizer(OptimizerObject options);
  void choose_schedule(ScheduleObject shape);

  /// All of it as the library takes it.
  [[nodiscard]] config::Config get() const;

 private:
  nb::object optimizer_;
  nb::object schedule_;
};

}  // namespace thinwire::python
