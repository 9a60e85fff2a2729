// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "bindings.h"
#include "thinwire/config/config.h"

namespace thinwire::python {

/// An object of any type of a variant.
using OptimizerObject = nb::typed<nb::object, config::OptimizerConfig>;

/// _core.Config. Its optimizer is a Python object, so that a reference stays
/// valid when another replaces it. The base class's member is not used.
class Settings : public config::Config {
 public:
  Settings() : Settings(config::Config()) {}
  explicit Settings(const config::Config& config);

  [[nodiscard]] OptimizerObject chosen_optimizer() const {
    return {optimizer_};
  }
  /// Throws TypeError naming the possible types.
  void choose_optimizer(OptimizerObject options);

  /// Returns all of it as the library needs it.
  [[nodiscard]] config::Config get() const;

 private:
  nb::object optimizer_;
};

}  // namespace thinwire::python
