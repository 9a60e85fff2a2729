// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bindings.h"
#include "thinwire/config/config.h"

namespace thinwire::python {

/// An object of any type of a variant.
using OptimizerObject = nb::typed<nb::object, config::OptimizerConfig>;
using ScheduleObject =
    nb::typed<nb::object, decltype(config::LearningRateSchedule::shape)>;

/// _core.Config. Its two members of several types are Python objects, so that a
/// reference stays valid when the member is replaced. The members of the base
/// class are not used.
class Settings : public config::Config {
 public:
  Settings() : Settings(config::Config()) {}
  explicit Settings(const config::Config& config);

  [[nodiscard]] OptimizerObject chosen_optimizer() const {
    return {optimizer_};
  }
  [[nodiscard]] ScheduleObject chosen_schedule() const { return {schedule_}; }
  /// Throw TypeError naming the possible types.
  void choose_optimizer(OptimizerObject options);
  void choose_schedule(ScheduleObject shape);

  /// Returns all of it as the library needs it.
  [[nodiscard]] config::Config get() const;

 private:
  nb::object optimizer_;
  nb::object schedule_;
};

}  // namespace thinwire::python
