// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/stl/optional.h>

#include <utility>
#include <vector>

#include "bindings.h"

namespace thinwire::python {

/// Binds a vector of structs like def_rw, as a list of copies, since the vector
/// owns the elements' memory.
template <class T, class Item>
void bind_list(nb::class_<T>& kind, const char* name,
               std::vector<Item> T::*member) {
  kind.def_prop_rw(
      name, [member](const T& self) { return self.*member; },
      [member](T& self, std::vector<Item> values) {
        self.*member = std::move(values);
      });
}

/// Binds copy.copy and copy.deepcopy of a struct that holds no references.
template <class T>
void bind_copies(nb::class_<T>& kind) {
  kind.def("__copy__", [](const T& self) { return T(self); })
      .def(
          "__deepcopy__",
          [](const T& self, nb::handle /*memo*/) { return T(self); }, "memo"_a);
}

}  // namespace thinwire::python
