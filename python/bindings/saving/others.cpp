// SPDX-License-Identifier: Apache-2.0
#include "saving/others.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <exception>
#include <tuple>

#include "core/require.h"
#include "support/errors.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/error.h"

namespace thinwire::python {
namespace {

// name, shape, values, is bool
using Tensor =
    std::tuple<std::string, std::vector<std::size_t>, nb::object, bool>;

void construct_others(
    Others* self, const std::vector<Tensor>& tensors,
    std::vector<std::pair<std::string, std::string>> aliases) {
  Others others{.held = {}, .tensors = {}, .aliases = std::move(aliases)};
  for (const auto& [name, shape, values, is_bool] : tensors) {
    const std::string argument = "tensors: '" + name + "'";
    Array array(values, argument.c_str(), Bools::kAsBytes);
    std::size_t size = 1;
    for (const std::size_t extent : shape) size *= extent;
    const std::size_t given = array.view().size();
    if (size != given)
      reject(fmt::format("{} must have as many values as its shape, {}, got {}",
                         argument, size, given));
    others.tensors.push_back({.name = name,
                              .shape = shape,
                              .values = array.view(),
                              .is_bool = is_bool});
    others.held.push_back(std::move(array));
  }
  new (self) Others(std::move(others));
}

}  // namespace

Others ask(nb::handle callable, comm::Communicator& comm) {
  Others others;
  std::exception_ptr raised;
  try {
    comm::require_everywhere(comm, [&] {
      if (!callable.is_valid() || callable.is_none()) return;
      const nb::gil_scoped_acquire held;
      try {
        others = nb::cast<Others>(callable());
      } catch (const nb::python_error& error) {
        raised = std::current_exception();
        throw Error(ErrorCode::kFailedPrecondition, text_of(error));
      } catch (const nb::cast_error&) {
        reject("others must return an Others");
      }
    });
  } catch (const Error&) {
    if (raised) std::rethrow_exception(raised);
    throw;
  }
  return others;
}

void bind_others(nb::module_& module) {
  nb::class_<Others>(module, "Others")
      .def("__init__", &construct_others, "tensors"_a = nb::tuple(),
           "aliases"_a = nb::tuple());
}

}  // namespace thinwire::python
