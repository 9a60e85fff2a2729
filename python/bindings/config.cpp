// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "thinwire/config/config.h"

namespace thinwire::python {
namespace {

using config::Config;

using Read = std::pair<Config, std::vector<config::KeyNote>>;

Read from_json(const std::string& text) {
  std::vector<config::KeyNote> notes;
  Config config = Config::from_json(text, &notes);
  return {std::move(config), std::move(notes)};
}

Read from_file(const std::string& path) {
  std::vector<config::KeyNote> notes;
  Config config = Config::from_file(path, &notes);
  return {std::move(config), std::move(notes)};
}

void bind_note(nb::module_& module) {
  using config::KeyNote;
  nb::class_<KeyNote>(module, "KeyNote")
      .def_ro("path", &KeyNote::path)
      .def_prop_ro("is_supported",
                   [](const KeyNote& note) {
                     return note.kind == KeyNote::Kind::kSupported;
                   })
      .def_prop_ro("is_ignored",
                   [](const KeyNote& note) {
                     return note.kind == KeyNote::Kind::kIgnored;
                   })
      .def_ro("note", &KeyNote::note)
      .def("__str__", [](const KeyNote& note) { return describe(note); });
}

void bind_zero(nb::module_& module) {
  using config::OffloadDevice;
  using config::ZeroConfig;
  nb::enum_<OffloadDevice>(module, "OffloadDevice")
      .value("none", OffloadDevice::kNone)
      .value("cpu", OffloadDevice::kCpu);
  nb::class_<ZeroConfig>(module, "ZeroConfig")
      .def_rw("stage", &ZeroConfig::stage)
      .def_rw("offload_optimizer", &ZeroConfig::offload_optimizer);
}

void bind_precision(nb::module_& module) {
  using config::PrecisionConfig;
  using precision::LossScalerOptions;
  nb::class_<LossScalerOptions>(module, "LossScalerOptions")
      .def_rw("initial_scale", &LossScalerOptions::initial_scale)
      .def_rw("dynamic", &LossScalerOptions::dynamic);
  nb::class_<PrecisionConfig>(module, "PrecisionConfig")
      .def_rw("dtype", &PrecisionConfig::dtype)
      .def_rw("loss_scale", &PrecisionConfig::loss_scale)
      .def_rw("check_grad_overflow", &PrecisionConfig::check_grad_overflow)
      .def_rw("master_dtype", &PrecisionConfig::master_dtype);
}

void bind_schedule(nb::module_& module) {
  using config::LearningRateSchedule;
  nb::class_<LearningRateSchedule>(module, "LearningRateSchedule")
      .def(nb::init<>())
      .def_prop_ro("is_constant", &LearningRateSchedule::is_constant)
      .def("rate", &LearningRateSchedule::rate, "base"_a, "applied_steps"_a);
}

void bind_comm(nb::module_& module) {
  using config::CommBackend;
  using config::CommConfig;
  using config::Hierarchy;
  nb::enum_<Hierarchy>(module, "Hierarchy")
      .value("auto", Hierarchy::kAuto)
      .value("flat", Hierarchy::kFlat)
      .value("by_host", Hierarchy::kByHost);
  nb::enum_<CommBackend>(module, "CommBackend")
      .value("unset", CommBackend::kUnset)
      .value("nccl", CommBackend::kNccl)
      .value("hccl", CommBackend::kHccl)
      .value("mpi", CommBackend::kMpi)
      .value("gloo", CommBackend::kGloo);
  nb::class_<CommConfig>(module, "CommConfig")
      .def_rw("backend", &CommConfig::backend)
      .def_rw("hierarchy", &CommConfig::hierarchy)
      .def_rw("ranks_per_host", &CommConfig::ranks_per_host)
      .def_rw("bucket_elements", &CommConfig::bucket_elements)
      .def_rw("num_threads", &CommConfig::num_threads)
      .def_rw("compressed_under_next_step",
              &CommConfig::compressed_under_next_step);
}

void bind_fields(nb::class_<Config>& kind) {
  kind.def_rw("precision", &Config::precision)
      .def_rw("gradient_clipping", &Config::gradient_clipping)
      .def_rw("lagged_clipping", &Config::lagged_clipping)
      .def_rw("train_batch_size", &Config::train_batch_size)
      .def_rw("train_micro_batch_size_per_gpu",
              &Config::train_micro_batch_size_per_gpu)
      .def_rw("gradient_accumulation_steps",
              &Config::gradient_accumulation_steps)
      .def_rw("managed_gradient_accumulation",
              &Config::managed_gradient_accumulation)
      .def_rw("accumulation_dtype", &Config::accumulation_dtype)
      .def_rw("schedule", &Config::schedule)
      .def_rw("zero", &Config::zero)
      .def_rw("comm", &Config::comm)
      .def_rw("buffers", &Config::buffers)
      .def_rw("steps_per_print", &Config::steps_per_print)
      .def_rw("semantics", &Config::semantics);
}

void bind_methods(nb::class_<Config>& kind) {
  using Self = const Config;
  kind.def("validate", &Config::validate, "world"_a)
      .def(
          "batch",
          [](Self& self, int world) {
            const config::BatchSizes sizes = self.batch(world);
            return std::tuple(sizes.train, sizes.micro,
                              sizes.accumulation_steps);
          },
          "world"_a)
      .def_prop_ro("sync_every",
                   [](Self& self) { return self.outer.sync_every; })
      .def_prop_ro(
          "planned_first_steps",
          [](Self& self) { return optim::first_steps_of(self.average); })
      .def("optimizer_name",
           [](Self& self) {
             return std::string(config::name_of(self.optimizer));
           })
      .def("to_json", &Config::to_json)
      .def("describe", &Config::describe)
      .def("__copy__", [](Self& self) { return Config(self); })
      .def(
          "__deepcopy__",
          [](Self& self, nb::handle /*memo*/) { return Config(self); },
          "memo"_a)
      .def_static("from_json", &from_json, "text"_a)
      .def_static("from_file", &from_file, "path"_a);
}

}  // namespace

void bind_config(nb::module_& module) {
  using config::Buffers;
  using config::Semantics;
  nb::enum_<Semantics>(module, "Semantics")
      .value("corrected", Semantics::kCorrected)
      .value("deepspeed", Semantics::kDeepSpeed);
  nb::enum_<Buffers>(module, "Buffers")
      .value("broadcast", Buffers::kBroadcast)
      .value("average", Buffers::kAverage)
      .value("as_they_are", Buffers::kAsTheyAre);
  module.attr("AUTO_FREEZE") = optim::kAutoFreeze;
  bind_note(module);
  bind_zero(module);
  bind_precision(module);
  bind_schedule(module);
  bind_comm(module);
  nb::class_<Config> kind(module, "Config");
  kind.def(nb::init<>());
  bind_fields(kind);
  bind_methods(kind);
  bind_keywords(kind);
}

}  // namespace thinwire::python
