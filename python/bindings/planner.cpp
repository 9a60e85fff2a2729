// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "bindings.h"
#include "communicator.h"
#include "config.h"
#include "support/gil.h"
#include "thinwire/comm/hosts.h"
#include "thinwire/plan/measure.h"
#include "thinwire/plan/plan_table.h"
#include "thinwire/plan/workload.h"

namespace thinwire::python {
namespace {

using plan::Compute;
using plan::MeasuredCompute;
using plan::MeasuredNetwork;
using plan::Network;
using plan::Processors;
using plan::Workload;

void bind_structs(nb::module_& module) {
  nb::class_<Network>(module, "Network")
      .def(nb::init<>())
      .def_rw("ranks", &Network::ranks)
      .def_rw("ranks_per_host", &Network::ranks_per_host)
      .def_rw("gbps", &Network::gbps)
      .def_rw("latency_seconds", &Network::latency_seconds)
      .def("validate", &Network::validate)
      .def("__str__", [](const Network& self) { return describe(self); });
  nb::class_<MeasuredNetwork, Network>(module, "MeasuredNetwork")
      .def("unstable",
           [](const MeasuredNetwork& self) { return unstable(self); })
      .def("__str__",
           [](const MeasuredNetwork& self) { return describe(self); });
  nb::class_<Compute>(module, "Compute")
      .def(nb::init<>())
      .def_rw("norm", &Compute::norm)
      .def_rw("sum", &Compute::sum);
  nb::class_<MeasuredCompute, Compute>(module, "MeasuredCompute")
      .def_rw("spread", &MeasuredCompute::spread)
      .def("unstable",
           [](const MeasuredCompute& self) { return unstable(self); })
      .def("__str__",
           [](const MeasuredCompute& self) { return describe(self); });
  nb::class_<Workload>(module, "Workload")
      .def(nb::init<>())
      .def_rw("parameters", &Workload::parameters)
      .def_rw("dtype", &Workload::dtype)
      .def_rw("forward_seconds", &Workload::forward_seconds)
      .def_rw("backward_seconds", &Workload::backward_seconds)
      .def_rw("steps_per_variance_step", &Workload::steps_per_variance_step)
      .def_rw("has_spare_core", &Workload::has_spare_core);
  nb::class_<Processors>(module, "Processors")
      .def_prop_ro("has_spare_core", &Processors::has_spare_core)
      .def("__str__", [](const Processors& self) { return describe(self); });
}

// The network, and why ranks do not exchange by host.
std::tuple<MeasuredNetwork, std::string> measure_network(
    const CommunicatorHandle& comm) {
  return without_gil(comm.get(), [](auto& group) {
    comm::WhyFlat why;
    const comm::Hosts hosts = comm::find_hosts(group, {}, &why);
    return std::tuple(plan::measure_network(group, hosts), why.text);
  });
}

Processors measure_processors(const CommunicatorHandle& comm, int threads) {
  return without_gil(comm.get(), [threads](auto& group) {
    return plan::measure_processors(group, threads);
  });
}

MeasuredCompute measure_compute(const CommunicatorHandle& comm) {
  return without_gil(comm.get(),
                     [](auto& group) { return plan::measure_compute(group); });
}

std::string plan(const Workload& work, const Network& network,
                 const Compute& compute, bool json) {
  const auto all = plan::plan(work, network, compute);
  return json ? plan::plan_json(all) : plan::plan_table(all);
}

}  // namespace

void bind_planner(nb::module_& module) {
  bind_structs(module);
  module.def(
      "workload_of",
      [](const Settings& config, int ranks, const Workload& work) {
        return plan::workload_of(config.get(), ranks, work);
      },
      "config"_a, "ranks"_a, "work"_a);
  module.def(
      "workload_of_run",
      [](const Workload& work, std::int64_t total_steps,
         std::optional<std::int64_t> freeze_step, const Settings* config) {
        std::optional<config::Config> named;
        if (config != nullptr) named = config->get();
        return plan::workload_of_run(work, total_steps, freeze_step,
                                     named ? &*named : nullptr);
      },
      "work"_a, "total_steps"_a, "freeze_step"_a.none(), "config"_a.none());
  module.def("measure_network", &measure_network, "comm"_a);
  module.def("measure_compute", &measure_compute, "comm"_a);
  module.def("measure_processors", &measure_processors, "comm"_a,
             "threads"_a = -1);
  module.def("processors_for", &plan::processors_for, "ranks"_a,
             "threads"_a = -1);
  module.def("plan", &plan, "work"_a, "network"_a, "compute"_a,
             "json"_a = false);
}

}  // namespace thinwire::python
