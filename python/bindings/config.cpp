// SPDX-License-Identifier: Apache-2.0
#include "config.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "thinwire/core/error.h"

namespace thinwire::python {
namespace {

using config::Config;
using Shape = decltype(config::LearningRateSchedule::shape);

// Returns the current one of a variant's types, as an object that owns a copy.
template <class Variant>
nb::object to_object(const Variant& value) {
  return std::visit(
      [](const auto& held) { return nb::cast(held, nb::rv_policy::copy); },
      value);
}

template <class Variant>
nb::object checked(nb::object object, const char* name, const char* types) {
  Variant value;
  if (!nb::try_cast(object, value, false))
    throw nb::type_error((std::string(name) + " must be one of " + types +
                          ", got " + nb::inst_name(object).c_str())
                             .c_str());
  return object;
}

std::int64_t whole(const std::string& name, double value) {
  if (value != std::floor(value) || std::abs(value) > 1e18)
    throw Error(ErrorCode::kInvalidArgument,
                "autos: " + name + " must be a whole number, got " +
                    std::to_string(value));
  return static_cast<std::int64_t>(value);
}

using Autos = std::optional<std::map<std::string, double>>;

config::AutoValues to_autos(const Autos& autos) {
  config::AutoValues values;
  if (!autos) return values;
  for (const auto& [name, value] : *autos) {
    if (name == "total_num_steps")
      values.total_num_steps = whole(name, value);
    else if (name == "warmup_num_steps")
      values.warmup_num_steps = whole(name, value);
    else if (name == "learning_rate")
      values.learning_rate = value;
    else
      throw Error(ErrorCode::kInvalidArgument,
                  "autos: names must be total_num_steps, warmup_num_steps or "
                  "learning_rate, got '" +
                      name + "'");
  }
  return values;
}

using Read = std::pair<Settings, std::vector<config::KeyNote>>;

template <auto kRead>
Read read(const std::string& from, const Autos& autos,
          const std::vector<std::string>& taken) {
  std::vector<config::KeyNote> notes;
  const Config config = kRead(from, &notes, to_autos(autos), taken);
  return {Settings(config), std::move(notes)};
}

Config from_json(const std::string& text, std::vector<config::KeyNote>* notes,
                 const config::AutoValues& autos,
                 const std::vector<std::string>& taken) {
  return Config::from_json(text, notes, autos, taken);
}

void bind_note(nb::module_& module) {
  using config::KeyNote;
  nb::class_<KeyNote>(module, "KeyNote")
      .def_ro("path", &KeyNote::path)
      .def_prop_ro("is_supported",
                   [](const KeyNote& note) {
                     return note.kind == KeyNote::Kind::kSupported;
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
      .def(nb::init<>())
      .def_rw("stage", &ZeroConfig::stage)
      .def_rw("reduce_scatter", &ZeroConfig::reduce_scatter)
      .def_rw("reduce_bucket_size", &ZeroConfig::reduce_bucket_size)
      .def_rw("allgather_bucket_size", &ZeroConfig::allgather_bucket_size)
      .def_rw("ignore_unused_parameters", &ZeroConfig::ignore_unused_parameters)
      .def_rw("round_robin_gradients", &ZeroConfig::round_robin_gradients)
      .def_rw("offload_optimizer", &ZeroConfig::offload_optimizer)
      .def_rw("wire", &ZeroConfig::wire);
}

void bind_wire(nb::module_& module) {
  using zero::AfterSkip;
  using zero::WireOptions;
  nb::enum_<AfterSkip>(module, "AfterSkip")
      .value("auto", AfterSkip::kAuto)
      .value("keep", AfterSkip::kKeep)
      .value("clear", AfterSkip::kClear);
  nb::class_<WireOptions>(module, "WireOptions")
      .def(nb::init<>())
      .def_rw("bits_up", &WireOptions::bits_up)
      .def_rw("bits_down", &WireOptions::bits_down)
      .def_rw("residual_dtype", &WireOptions::residual_dtype)
      .def_rw("after_skip", &WireOptions::after_skip);
}

void bind_telemetry(nb::module_& module) {
  using config::Fallback;
  using config::TelemetryConfig;
  nb::enum_<Fallback>(module, "Fallback")
      .value("off", Fallback::kOff)
      .value("warn", Fallback::kWarn)
      .value("hold", Fallback::kHold);
  nb::class_<TelemetryConfig>(module, "TelemetryConfig")
      .def(nb::init<>())
      .def_rw("path", &TelemetryConfig::path)
      .def_rw("every", &TelemetryConfig::every)
      .def_rw("every_rank", &TelemetryConfig::every_rank)
      .def_rw("residual_every", &TelemetryConfig::residual_every);
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
      .def(nb::init<>())
      .def_rw("backend", &CommConfig::backend)
      .def_rw("hierarchy", &CommConfig::hierarchy)
      .def_rw("ranks_per_host", &CommConfig::ranks_per_host)
      .def_rw("bucket_elements", &CommConfig::bucket_elements)
      .def_rw("num_threads", &CommConfig::num_threads)
      .def_rw("verify_every", &CommConfig::verify_every)
      .def_rw("overlap", &CommConfig::overlap)
      .def_rw("compressed_during_backward",
              &CommConfig::compressed_during_backward);
}

void bind_outer(nb::module_& module) {
  using outer::OuterOptions;
  nb::class_<OuterOptions>(module, "OuterOptions")
      .def(nb::init<>())
      .def_rw("sync_every", &OuterOptions::sync_every)
      .def_rw("sync_growth", &OuterOptions::sync_growth)
      .def_rw("learning_rate", &OuterOptions::learning_rate)
      .def_rw("momentum", &OuterOptions::momentum)
      .def_rw("bits_up", &OuterOptions::bits_up)
      .def_rw("bits_down", &OuterOptions::bits_down)
      .def_rw("warmup_steps", &OuterOptions::warmup_steps)
      .def_rw("warmup_bits", &OuterOptions::warmup_bits);
}

void bind_checkpoint_config(nb::module_& module) {
  using config::CheckpointConfig;
  nb::class_<CheckpointConfig>(module, "CheckpointConfig")
      .def(nb::init<>())
      .def_rw("root", &CheckpointConfig::root)
      .def_rw("every_steps", &CheckpointConfig::every_steps)
      .def_prop_rw(
          "every",
          [](const CheckpointConfig& self) {
            return std::chrono::duration<double>(self.every).count();
          },
          [](CheckpointConfig& self, double seconds) {
            self.every = std::chrono::milliseconds(std::llround(seconds * 1e3));
          })
      .def_rw("keep_last", &CheckpointConfig::keep_last)
      .def_rw("keep_every", &CheckpointConfig::keep_every)
      .def_rw("asynchronous", &CheckpointConfig::asynchronous);
}

void bind_fields(nb::class_<Settings>& kind) {
  kind.def_prop_rw("optimizer", &Settings::chosen_optimizer,
                   &Settings::choose_optimizer)
      .def_rw("precision", &Settings::precision)
      .def_rw("gradient_clipping", &Settings::gradient_clipping)
      .def_rw("lagged_clipping", &Settings::lagged_clipping)
      .def_rw("train_batch_size", &Settings::train_batch_size)
      .def_rw("train_micro_batch_size_per_gpu",
              &Settings::train_micro_batch_size_per_gpu)
      .def_rw("gradient_accumulation_steps",
              &Settings::gradient_accumulation_steps)
      .def_rw("managed_gradient_accumulation",
              &Settings::managed_gradient_accumulation)
      .def_rw("accumulation_dtype", &Settings::accumulation_dtype)
      .def_rw("communication_dtype", &Settings::communication_dtype)
      .def_prop_rw("schedule", &Settings::chosen_schedule,
                   &Settings::choose_schedule)
      .def_rw("zero", &Settings::zero)
      .def_rw("comm", &Settings::comm)
      .def_rw("outer", &Settings::outer)
      .def_rw("checkpoint", &Settings::checkpoint)
      .def_rw("telemetry", &Settings::telemetry)
      .def_rw("fallback", &Settings::fallback)
      .def_rw("buffers", &Settings::buffers)
      .def_rw("prescale_gradients", &Settings::prescale_gradients)
      .def_rw("gradient_predivide_factor", &Settings::gradient_predivide_factor)
      .def_rw("steps_per_print", &Settings::steps_per_print)
      .def_rw("wall_clock_breakdown", &Settings::wall_clock_breakdown)
      .def_rw("memory_breakdown", &Settings::memory_breakdown)
      .def_rw("semantics", &Settings::semantics)
      .def_rw("other_objects", &Settings::other_objects);
}

void bind_methods(nb::class_<Settings>& kind) {
  using Self = const Settings;
  kind.def(
          "validate", [](Self& self, int world) { self.get().validate(world); },
          "world"_a)
      .def(
          "batch",
          [](Self& self, int world) {
            const config::BatchSizes sizes = self.batch(world);
            return std::tuple(sizes.train, sizes.micro,
                              sizes.accumulation_steps);
          },
          "world"_a)
      .def("optimizer_name",
           [](Self& self) {
             return std::string(config::name_of(self.get().optimizer));
           })
      .def("to_json", [](Self& self) { return self.get().to_json(); })
      .def("describe", [](Self& self) { return self.get().describe(); })
      .def("__copy__", [](Self& self) { return Settings(self.get()); })
      .def(
          "__deepcopy__",
          [](Self& self, nb::handle /*memo*/) { return Settings(self.get()); },
          "memo"_a)
      .def_static("from_json", &read<&from_json>, "text"_a,
                  "autos"_a = nb::none(), "taken"_a = nb::tuple())
      .def_static("from_file", &read<&Config::from_file>, "path"_a,
                  "autos"_a = nb::none(), "taken"_a = nb::tuple());
}

}  // namespace

Settings::Settings(const Config& config)
    : Config(config),
      optimizer_(to_object(config.optimizer)),
      schedule_(to_object(config.schedule.shape)) {}

void Settings::choose_optimizer(OptimizerObject options) {
  optimizer_ = checked<config::OptimizerConfig>(
      std::move(options), "optimizer",
      "AdamOptions, LambOptions, OnebitAdamOptions, OnebitLambOptions, "
      "ZeroOneAdamOptions and LeanOnebitAdamOptions");
}

void Settings::choose_schedule(ScheduleObject shape) {
  schedule_ = checked<Shape>(
      std::move(shape), "schedule",
      "WarmupAndDecay, WarmupLr, WarmupDecayLr, WarmupCosineLr, OneCycle and "
      "LrRangeTest");
}

Config Settings::get() const {
  Config config = *this;
  config.optimizer = nb::cast<config::OptimizerConfig>(optimizer_);
  config.schedule.shape = nb::cast<Shape>(schedule_);
  return config;
}

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
  bind_note(module);
  bind_wire(module);
  bind_zero(module);
  bind_comm(module);
  bind_outer(module);
  bind_checkpoint_config(module);
  bind_telemetry(module);
  nb::class_<Settings> kind(module, "Config");
  kind.def(nb::init<>());
  bind_fields(kind);
  bind_methods(kind);
}

}  // namespace thinwire::python
