// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "support/arrays.h"
#include "support/gil.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/parameter_layout.h"

namespace thinwire::python {
namespace {

// name, shape, group
using Spec = std::tuple<std::string, std::vector<std::size_t>, std::size_t>;

void construct_layout(ParameterLayout* self, std::vector<Spec> parameters,
                      std::size_t num_groups) {
  std::vector<ParameterSpec> specs;
  specs.reserve(parameters.size());
  for (auto& [name, shape, group] : parameters)
    specs.push_back(
        {.name = std::move(name), .shape = std::move(shape), .group = group});
  new (self) ParameterLayout(ParameterLayout::of(std::move(specs), num_groups));
}

// Returns one member of every parameter.
template <auto kMember>
auto each(const ParameterLayout& layout) {
  using Value = std::remove_cvref_t<decltype(Parameter{}.*kMember)>;
  std::vector<Value> values;
  for (const Parameter& parameter : layout.parameters())
    values.push_back(parameter.*kMember);
  return values;
}

}  // namespace

void bind_layout(nb::module_& module) {
  nb::class_<ParameterLayout>(module, "Layout")
      .def("__init__", &construct_layout, "parameters"_a, "num_groups"_a = 0)
      .def_prop_ro("size", &ParameterLayout::size)
      .def_prop_ro("num_groups", &ParameterLayout::num_groups)
      .def_prop_ro("offsets", &each<&Parameter::offset>)
      .def_prop_ro("sizes", &each<&Parameter::size>)
      .def_prop_ro("names", &each<&Parameter::name>)
      .def("describe", &ParameterLayout::describe)
      .def("hash", &ParameterLayout::hash);
  module.def(
      "checksum",
      [](nb::handle values) {
        const ConstArray array(values, "values");
        const WithoutGil released;
        return checksum(array.view());
      },
      "values"_a);
}

}  // namespace thinwire::python
