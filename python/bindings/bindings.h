// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

/// The native module of Thinwire for Python: the C++ library, with no logic of
/// its own. What each item does is said in _core.pyi.
namespace thinwire::python {

namespace nb = nanobind;
using namespace nb::literals;

void bind_errors(nb::module_& module);
void bind_log(nb::module_& module);
void bind_machine(nb::module_& module);
void bind_build(nb::module_& module);
void bind_communicator(nb::module_& module);
void bind_layout(nb::module_& module);
void bind_options(nb::module_& module);
void bind_precision(nb::module_& module);
void bind_schedules(nb::module_& module);
void bind_config(nb::module_& module);
void bind_planner(nb::module_& module);
void bind_reports(nb::module_& module);
void bind_optimizer(nb::module_& module);
void bind_checkpoint_options(nb::module_& module);
void bind_checkpoint_reports(nb::module_& module);
void bind_engine(nb::module_& module);
void bind_checkpoint(nb::module_& module);

}  // namespace thinwire::python
