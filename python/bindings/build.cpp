// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "thinwire/comm/registry.h"
#include "thinwire/kernels/cpu_target.h"
#include "thinwire/kernels/processor.h"

namespace thinwire::python {

// What `python -m thinwire doctor` says.
void bind_build(nb::module_& module) {
  module.attr("compiler") = THINWIRE_BUILD_COMPILER;
  module.def("cpu_targets", &kernels::cpu_targets);
  module.def("prefetch", [] {
    return std::tuple(kernels::prefetches(),
                      std::string(kernels::prefetch_reason()));
  });
  module.def("backends", [] {
    std::vector<std::tuple<std::string, std::string, std::string>> all;
    for (const comm::Backend& backend : comm::backends())
      all.emplace_back(backend.name, backend.version(),
                       backend.why_unavailable());
    return all;
  });
}

}  // namespace thinwire::python
