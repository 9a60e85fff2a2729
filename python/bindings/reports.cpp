// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>

#include <string>

#include "bindings.h"
#include "thinwire/engine/engine.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::python {

void bind_reports(nb::module_& module) {
  using engine::EngineReport;
  using optim::StepReport;
  nb::class_<StepReport>(module, "StepReport")
      .def_ro("applied", &StepReport::applied)
      .def_ro("nonfinite_rank", &StepReport::nonfinite_rank)
      .def_prop_ro("phase",
                   [](const StepReport& report) {
                     return std::string(to_string(report.phase));
                   })
      .def_ro("grad_norm", &StepReport::grad_norm)
      .def_ro("grad_norm_is_estimate", &StepReport::grad_norm_is_estimate)
      .def_ro("clip_factor", &StepReport::clip_factor)
      .def_ro("drift", &StepReport::drift)
      .def_ro("rho", &StepReport::rho)
      .def_ro("loss_scale", &StepReport::loss_scale)
      .def_ro("bits", &StepReport::bits)
      .def_ro("masked", &StepReport::masked)
      .def_ro("heavy", &StepReport::heavy)
      .def_ro("revived", &StepReport::revived)
      .def_ro("bytes_sent", &StepReport::bytes_sent)
      .def_ro("collectives", &StepReport::collectives)
      .def_ro("messages", &StepReport::messages)
      .def_ro("bytes_between_hosts", &StepReport::bytes_between_hosts)
      .def_ro("residuals_cleared", &StepReport::residuals_cleared)
      .def_ro("seconds", &StepReport::seconds)
      .def_ro("exchange_seconds", &StepReport::exchange_seconds)
      .def_ro("comm_busy_seconds", &StepReport::comm_busy_seconds)
      .def_ro("gradients_equal", &StepReport::gradients_equal);
  nb::class_<EngineReport, StepReport>(module, "EngineReport")
      .def_ro("at_boundary", &EngineReport::at_boundary)
      .def_ro("steps", &EngineReport::steps)
      .def_ro("learning_rate", &EngineReport::learning_rate)
      .def_ro("backward_seconds", &EngineReport::backward_seconds)
      .def_ro("late_elements", &EngineReport::late_elements)
      .def_ro("waited_for", &EngineReport::waited_for);
}

}  // namespace thinwire::python
