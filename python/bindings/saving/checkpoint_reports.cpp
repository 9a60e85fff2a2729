// SPDX-License-Identifier: Apache-2.0
#include "saving/checkpoint_reports.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>

#include "support/errors.h"
#include "support/gil.h"
#include "support/state.h"
#include "thinwire/core/error.h"

namespace thinwire::python {
namespace {

using checkpoint::LoadReport;

template <auto kMember>
auto member(const LoadFound& found) {
  return found.report.*kMember;
}

}  // namespace

LoadFound::LoadFound(LoadReport&& loaded)
    : report(std::move(loaded)),
      scalars(to_python(std::move(report.scalars))),
      common(to_python(std::move(report.extra.common))),
      own(to_python(std::move(report.extra.own))) {
  for (StateDict& state : report.own_of_ranks)
    own_of_ranks.append(to_python(std::move(state)));
}

namespace {

// Copies a report, whose arrays are moved when Python gets it.
LoadReport copy_of(const LoadReport& report) {
  LoadReport copy{
      .path = report.path,
      .step = report.step,
      .run = report.run,
      .world = report.world,
      .optimizer = report.optimizer,
      .precision = report.precision,
      .config = report.config,
      .scalars = report.scalars.part(""),
      .extra = {report.extra.common.part(""), report.extra.own.part("")},
      .own_of_ranks = {},
      .notes = report.notes,
      .bytes = report.bytes};
  for (const StateDict& own : report.own_of_ranks)
    copy.own_of_ranks.push_back(own.part(""));
  return copy;
}

}  // namespace

checkpoint::LoadOptions to_load_options(const checkpoint::LoadOptions* options,
                                        const nb::object& callable) {
  checkpoint::LoadOptions chosen =
      options == nullptr ? checkpoint::LoadOptions() : *options;
  if (callable.is_none()) return chosen;
  const auto held = std::make_shared<Reference>(callable);
  chosen.accept = [held](const LoadReport& found) {
    with_gil(ErrorCode::kCorruptCheckpoint, [&] {
      static_cast<void>(held->get()(LoadFound(copy_of(found))));
    });
  };
  return chosen;
}

void bind_checkpoint_reports(nb::module_& module) {
  using checkpoint::SaveReport;
  nb::class_<SaveReport>(module, "SaveReport")
      .def_ro("path", &SaveReport::path)
      .def_ro("step", &SaveReport::step)
      .def_ro("bytes", &SaveReport::bytes)
      .def_ro("seconds", &SaveReport::seconds)
      .def_ro("waited_seconds", &SaveReport::waited_seconds)
      .def("__repr__", [](const SaveReport& report) {
        return fmt::format(
            "SaveReport(path='{}', step={}, bytes={}, seconds={:.3f})",
            report.path, report.step, report.bytes, report.seconds);
      });
  nb::class_<LoadFound>(module, "LoadReport")
      .def_prop_ro("path", &member<&LoadReport::path>)
      .def_prop_ro("step", &member<&LoadReport::step>)
      .def_prop_ro("run", &member<&LoadReport::run>)
      .def_prop_ro("world", &member<&LoadReport::world>)
      .def_prop_ro("optimizer", &member<&LoadReport::optimizer>)
      .def_prop_ro("precision", &member<&LoadReport::precision>)
      .def_prop_ro("config", &member<&LoadReport::config>)
      .def_ro("scalars", &LoadFound::scalars)
      .def_ro("common", &LoadFound::common)
      .def_ro("own", &LoadFound::own)
      .def_ro("own_of_ranks", &LoadFound::own_of_ranks)
      .def_prop_ro("notes", &member<&LoadReport::notes>)
      .def_prop_ro("seconds", &member<&LoadReport::seconds>)
      .def_prop_ro("bytes", &member<&LoadReport::bytes>);
}

}  // namespace thinwire::python
