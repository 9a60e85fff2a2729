// SPDX-License-Identifier: Apache-2.0
#include "options.h"
#include "thinwire/config/config.h"
#include "thinwire/precision/loss_scaler.h"

namespace thinwire::python {

void bind_precision(nb::module_& module) {
  using config::PrecisionConfig;
  using precision::AtMinimum;
  using Scaler = precision::LossScalerOptions;
  nb::enum_<AtMinimum>(module, "AtMinimum")
      .value("stop", AtMinimum::kStop)
      .value("hold", AtMinimum::kHold);
  nb::class_<Scaler>(module, "LossScalerOptions")
      .def(nb::init<>())
      .def_rw("initial_scale", &Scaler::initial_scale)
      .def_rw("dynamic", &Scaler::dynamic)
      .def_rw("window", &Scaler::window)
      .def_rw("hysteresis", &Scaler::hysteresis)
      .def_rw("consecutive_hysteresis", &Scaler::consecutive_hysteresis)
      .def_rw("min_scale", &Scaler::min_scale)
      .def_rw("max_scale", &Scaler::max_scale)
      .def_rw("at_minimum", &Scaler::at_minimum);
  nb::class_<PrecisionConfig>(module, "PrecisionConfig")
      .def(nb::init<>())
      .def_rw("dtype", &PrecisionConfig::dtype)
      .def_rw("loss_scale", &PrecisionConfig::loss_scale)
      .def_rw("check_grad_overflow", &PrecisionConfig::check_grad_overflow)
      .def_rw("master_dtype", &PrecisionConfig::master_dtype)
      .def_rw("state_dtype", &PrecisionConfig::state_dtype);
}

}  // namespace thinwire::python
