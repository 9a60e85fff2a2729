// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "engine.h"
#include "saving/checkpoint_options.h"
#include "saving/checkpoint_reports.h"

namespace thinwire::python {
namespace {

using checkpoint::LoadOptions;
using checkpoint::SaveOptions;
using checkpoint::SaveReport;
using Self = const EngineHandle;

// Calls body(engine), with the current result of others().
template <class Body>
auto with_others(Self& self, const char* name, Body&& body) {
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

SaveReport save(Self& self, const std::string& root, nb::handle extra,
                const SaveOptions* options) {
  const checkpoint::Extra added = to_extra(extra);
  const SaveOptions chosen = options == nullptr ? SaveOptions() : *options;
  return with_others(self, "save", [&](engine::Engine& engine) {
    return engine.save(root, added, chosen);
  });
}

LoadFound load(Self& self, const std::string& path, const LoadOptions* options,
               const nb::object& accept) {
  const LoadOptions chosen = to_load_options(options, accept);
  return LoadFound(with_others(self, "load", [&](engine::Engine& engine) {
    return engine.load(path, chosen);
  }));
}

std::optional<LoadFound> resume(Self& self, const std::string& path,
                                const LoadOptions* options,
                                const nb::object& accept) {
  const LoadOptions chosen = to_load_options(options, accept);
  auto report = with_others(self, "resume", [&](engine::Engine& engine) {
    return engine.resume(path, chosen);
  });
  if (!report) return std::nullopt;
  return LoadFound(std::move(*report));
}

void wait_for_save(Self& self) {
  call(self, "wait_for_save",
       [](EngineParts& parts) { parts.engine->saver().wait(); });
}

void retain(Self& self, const std::string& root, std::int64_t keep_last) {
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

void bind_engine_checkpoints(nb::class_<EngineHandle>& kind) {
  kind.def("set_others", &set_others, "others"_a.none())
      .def("save", &save, "root"_a, "extra"_a.none() = nb::none(),
           "options"_a.none() = nb::none())
      .def("load", &load, "path"_a, "options"_a.none() = nb::none(),
           nb::kw_only(), "accept"_a.none() = nb::none())
      .def("resume", &resume, "path"_a, "options"_a.none() = nb::none(),
           nb::kw_only(), "accept"_a.none() = nb::none())
      .def("wait_for_save", &wait_for_save)
      .def("retain", &retain, "root"_a, "keep_last"_a);
}

}  // namespace thinwire::python
