// SPDX-License-Identifier: Apache-2.0
#include "bindings.h"
#include "support/gil.h"

namespace py = thinwire::python;

NB_MODULE(_core, module) {
  // Threads that outlive __main__ keep objects alive. These are not leaks.
  nanobind::set_leak_warnings(false);
  // Otherwise the exit of a subinterpreter would look like the end of the
  // process.
  if (PyInterpreterState_GetID(PyInterpreterState_Get()) != 0)
    throw nanobind::import_error(
        "thinwire works in the main interpreter of a process, not in a "
        "subinterpreter");
  module.attr("version") = THINWIRE_VERSION;
  py::watch_exit();
  py::bind_errors(module);
  py::bind_log(module);
  py::bind_machine(module);
  py::bind_communicator(module);
  py::bind_layout(module);
  py::bind_codec(module);
  py::bind_means(module);
  py::bind_low_bit_reduce_scatter(module);
  py::bind_config(module);
  py::bind_reports(module);
  py::bind_notices(module);
  py::bind_optimizer(module);
  py::bind_checkpoint_options(module);
  py::bind_checkpoint_reports(module);
  py::bind_engine(module);
  py::bind_checkpoint(module);
  py::bind_commands(module);
}
