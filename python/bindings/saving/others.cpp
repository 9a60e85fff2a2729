// SPDX-License-Identifier: Apache-2.0
#include "saving/others.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <exception>
#include <tuple>

#include "checkpoint/format/safetensors.h"
#include "core/require.h"
#include "support/errors.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/error.h"

namespace thinwire::python {
namespace {

// name, shape, values, the type's name if it is none of a DType
using Tensor =
    std::tuple<std::string, std::vector<std::size_t>, nb::object, std::string>;

void construct_others(
    Others* self, const std::vector<Tensor>& tensors,
    std::vector<std::pair<std::string, std::string>> aliases) {
  Others others{.held = {}, .tensors = {}, .aliases = std::move(aliases)};
  for (const auto& [name, shape, values, type] : tensors) {
    const std::string argument = "tensors: '" + name + "'";
    Array array(values, argument.c_str(), Bools::kAsBytes);
    std::size_t size = 1;
    for (const std::size_t extent : shape) size *= extent;
    const std::size_t given = array.view().size();
    if (size != given)
      reject(fmt::format("{} must have as many values as its shape, {}, got {}",
                         argument, size, given));
    const auto known = checkpoint::tensor_type_from(type);
    if (!type.empty() && !known)
      reject(fmt::format("{} is of type {}, which files lack", argument, type));
    others.tensors.push_back({.name = name,
                              .shape = shape,
                              .values = array.view(),
                              .type = known ? known->other : ""});
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
