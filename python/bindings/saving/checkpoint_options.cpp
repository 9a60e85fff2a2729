// SPDX-License-Identifier: Apache-2.0
#include "saving/checkpoint_options.h"

#include <fmt/format.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/errors.h"
#include "support/gil.h"
#include "support/state.h"
#include "thinwire/core/error.h"

namespace thinwire::python {
namespace {

using checkpoint::Attachment;
using checkpoint::LoadOptions;
using checkpoint::SaveOptions;
using checkpoint::What;

using Named = std::pair<std::string, nb::bytes>;

std::vector<Named> attachments(const SaveOptions& self) {
  std::vector<Named> all;
  for (const Attachment& attachment : self.attachments)
    all.emplace_back(attachment.name, nb::bytes(attachment.bytes.data(),
                                                attachment.bytes.size()));
  return all;
}

void attach(SaveOptions& self, const std::vector<Named>& all) {
  self.attachments.clear();
  for (const auto& [name, bytes] : all)
    self.attachments.push_back(
        {.name = name, .bytes = std::string(bytes.c_str(), bytes.size())});
}

void bind_enums(nb::module_& module) {
  using checkpoint::LocalSteps;
  nb::enum_<LocalSteps>(module, "LocalSteps")
      .value("as_is", LocalSteps::kAsIs)
      .value("next_sync", LocalSteps::kNextSync)
      .value("synchronize", LocalSteps::kSynchronize);
}

void bind_load_options(nb::module_& module) {
  nb::class_<LoadOptions>(module, "LoadOptions")
      .def(nb::init<>())
      .def_prop_rw(
          "weights_only",
          [](const LoadOptions& self) { return self.what == What::kWeights; },
          [](LoadOptions& self, bool weights_only) {
            self.what = weights_only ? What::kWeights : What::kAll;
          })
      .def_rw("fall_back", &LoadOptions::fall_back)
      .def_rw("allow_rounding", &LoadOptions::allow_rounding)
      .def_rw("share_reads", &LoadOptions::share_reads)
      .def_rw("strict", &LoadOptions::strict)
      .def_rw("rename", &LoadOptions::rename)
      .def_rw("allow_missing", &LoadOptions::allow_missing)
      .def_rw("ignore", &LoadOptions::ignore);
}

using checkpoint::LoadReport;

}  // namespace

checkpoint::Extra to_extra(nb::handle pair) {
  checkpoint::Extra extra;
  if (pair.is_none()) return extra;
  extra.common = to_state(pair[0], "common");
  extra.own = to_state(pair[1], "own");
  return extra;
}

void bind_checkpoint_options(nb::module_& module) {
  bind_enums(module);
  nb::class_<SaveOptions>(module, "SaveOptions")
      .def(nb::init<>())
      .def_rw("asynchronous", &SaveOptions::asynchronous)
      .def_rw("durable", &SaveOptions::durable)
      .def_rw("check_replicas", &SaveOptions::check_replicas)
      .def_rw("local_steps", &SaveOptions::local_steps)
      .def_rw("frozen", &SaveOptions::frozen)
      .def_prop_rw("attachments", &attachments, &attach);
  bind_load_options(module);
}

State fields_of(const LoadReport& report) {
  nb::list own_of_ranks;
  for (const StateDict& own : report.own_of_ranks)
    own_of_ranks.append(to_python(own.part("")));
  State all;
  all["path"] = report.path;
  all["step"] = report.step;
  all["run"] = report.run;
  all["world"] = report.world;
  all["optimizer"] = report.optimizer;
  all["precision"] = report.precision;
  all["config"] = report.config;
  all["notes"] = report.notes;
  all["seconds"] = report.seconds;
  all["bytes"] = report.bytes;
  all["scalars"] = to_python(report.scalars.part(""));
  all["common"] = to_python(report.extra.common.part(""));
  all["own_of_ranks"] = own_of_ranks;
  return all;
}

checkpoint::LoadOptions to_load_options(const checkpoint::LoadOptions* options,
                                        const nb::object& callable) {
  checkpoint::LoadOptions chosen =
      options == nullptr ? checkpoint::LoadOptions() : *options;
  if (callable.is_none()) return chosen;
  const auto held = std::make_shared<Reference>(callable);
  chosen.accept = [held](const LoadReport& found) {
    with_gil(ErrorCode::kCorruptCheckpoint,
             [&] { static_cast<void>(held->get()(fields_of(found))); });
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
}

}  // namespace thinwire::python
