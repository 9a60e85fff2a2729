// SPDX-License-Identifier: Apache-2.0
#include "thinwire/checkpoint/checkpoint.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/matching.h"
#include "communicator.h"
#include "engine.h"
#include "optimizer.h"
#include "saving/checkpoint_options.h"
#include "saving/others.h"
#include "thinwire/checkpoint/inspect.h"

namespace thinwire::python {
namespace {

using checkpoint::LoadOptions;
using checkpoint::SaveOptions;
using checkpoint::SaveReport;
using checkpoint::Training;

// Returns the arguments that save and load share.
Training training(comm::Communicator& comm, const ParameterLayout& layout,
                  View params, OptimizerParts& parts, const Others* others) {
  Training all{.comm = comm,
               .layout = layout,
               .params = params,
               .optimizer = parts.optimizer()};
  all.zero_stage = parts.config.zero.stage;
  all.semantics = std::string(to_string(parts.config.semantics));
  all.experts = parts.config.experts();
  if (others != nullptr) {
    all.others = others->tensors;
    all.aliases = others->aliases;
  }
  return all;
}

// NOLINTNEXTLINE(readability-function-size): the arguments of _core.save
SaveReport save(const CommunicatorHandle& comm, const ParameterLayout& layout,
                nb::handle params, const OptimizerHandle& optimizer,
                const std::string& root, std::int64_t step,
                const std::string& semantics, const std::string& config,
                const Others* others, nb::handle extra,
                const SaveOptions* options) {
  const Array array(params, "params");
  const auto group = comm.get();
  const checkpoint::Extra added = to_extra(extra);
  const SaveOptions chosen = options == nullptr ? SaveOptions() : *options;
  return call(optimizer, "save", [&](OptimizerParts& parts) {
    Training all = training(*group, layout, array.view(), parts, others);
    all.step = step;
    all.semantics = semantics;
    all.config = config;
    return checkpoint::save(all, root, added, chosen);
  });
}

// NOLINTNEXTLINE(readability-function-size): the arguments of _core.resume
std::optional<State> resume(const CommunicatorHandle& comm,
                            const ParameterLayout& layout, nb::handle params,
                            const OptimizerHandle& optimizer,
                            const std::string& path, const Others* others,
                            const LoadOptions* options,
                            const nb::object& accept) {
  const Array array(params, "params");
  const auto group = comm.get();
  const LoadOptions chosen = to_load_options(options, accept);
  auto report = call(optimizer, "load", [&](OptimizerParts& parts) {
    return checkpoint::resume(
        training(*group, layout, array.view(), parts, others), path, chosen);
  });
  if (!report) return std::nullopt;
  return fields_of(*report);
}

State to_dict(const checkpoint::Description& found) {
  State all;
  all["path"] = found.path;
  all["complete"] = found.complete;
  all["problem"] = found.problem;
  all["id"] = found.id;
  all["run"] = found.run;
  all["written"] = found.written;
  all["library"] = found.library;
  all["optimizer"] = found.optimizer;
  all["semantics"] = found.semantics;
  all["phase"] = found.phase;
  all["precision"] = found.precision;
  all["save_index"] = found.save_index;
  all["step"] = found.step;
  all["world"] = found.world;
  all["zero_stage"] = found.zero_stage;
  all["steps_behind"] = found.steps_behind;
  all["parameters"] = found.parameters;
  all["bytes"] = found.bytes;
  return all;
}

nb::typed<nb::list, State> inspect(const std::string& path) {
  std::vector<checkpoint::Description> found;
  {
    const WithoutGil released;
    found = checkpoint::inspect(path);
  }
  nb::typed<nb::list, State> all;
  for (const auto& description : found) all.append(to_dict(description));
  return all;
}

// ---- of engines

// Calls body(engine), with the current result of others().
template <class Body>
auto with_others(const EngineHandle& self, const char* name, Body&& body) {
  const nb::object others = self.others;
  return call(self, name, [&](EngineParts& parts) {
    struct Forget {
      Others& others;
      ~Forget() { others = {}; }
    } const forget{parts.others};
    parts.others = ask(others, *parts.comm);
    return body(*parts.engine);
  });
}

SaveReport save_engine(const EngineHandle& self, const std::string& root,
                       nb::handle extra, const SaveOptions* options) {
  const checkpoint::Extra added = to_extra(extra);
  const SaveOptions chosen = options == nullptr ? SaveOptions() : *options;
  return with_others(self, "save", [&](engine::Engine& engine) {
    return engine.save(root, added, chosen);
  });
}

std::optional<State> resume_engine(const EngineHandle& self,
                                   const std::string& path,
                                   const LoadOptions* options,
                                   const nb::object& accept) {
  const LoadOptions chosen = to_load_options(options, accept);
  auto report = with_others(self, "resume", [&](engine::Engine& engine) {
    return engine.resume(path, chosen);
  });
  if (!report) return std::nullopt;
  return fields_of(*report);
}

void wait_for_save(const EngineHandle& self) {
  call(self, "wait_for_save",
       [](EngineParts& parts) { parts.engine->saver().wait(); });
}

void retain(const EngineHandle& self, const std::string& root,
            std::int64_t keep_last) {
  call(self, "retain", [&](EngineParts& parts) {
    parts.engine->saver().retain(root, {.keep_last = keep_last});
  });
}

void set_others(EngineHandle& self, nb::object others) {
  if (!others.is_none() && PyCallable_Check(others.ptr()) == 0)
    throw nb::type_error("others must be callable or None");
  self.others = std::move(others);
}

}  // namespace

void bind_checkpoint(nb::module_& module) {
  bind_others(module);
  module.def("save", &save, "comm"_a, "layout"_a, "params"_a, "optimizer"_a,
             "root"_a, "step"_a, nb::kw_only(), "semantics"_a = "corrected",
             "config"_a = "", "others"_a.none() = nb::none(),
             "extra"_a.none() = nb::none(), "options"_a.none() = nb::none());
  module.def("resume", &resume, "comm"_a, "layout"_a, "params"_a, "optimizer"_a,
             "path"_a, nb::kw_only(), "others"_a.none() = nb::none(),
             "options"_a.none() = nb::none(), "accept"_a.none() = nb::none());
  module.def("inspect", &inspect, "path"_a);
  module.def("without_wrappers", &checkpoint::without_wrappers, "name"_a);
}

void bind_engine_checkpoints(nb::class_<EngineHandle>& kind) {
  kind.def("set_others", &set_others, "others"_a.none())
      .def("save", &save_engine, "root"_a, "extra"_a.none() = nb::none(),
           "options"_a.none() = nb::none())
      .def("resume", &resume_engine, "path"_a, "options"_a.none() = nb::none(),
           nb::kw_only(), "accept"_a.none() = nb::none())
      .def("wait_for_save", &wait_for_save)
      .def("retain", &retain, "root"_a, "keep_last"_a);
}

}  // namespace thinwire::python
