// SPDX-License-Identifier: Apache-2.0
#include "support/state.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/require.h"
#include "support/arrays.h"

namespace thinwire::python {
namespace {

template <class T>
T value_of(nb::handle value, const std::string& name, const char* range) {
  T result{};
  if (nb::try_cast(value, result)) return result;
  const auto text = nb::steal<nb::object>(PyObject_Repr(value.ptr()));
  if (!text.is_valid())
    PyErr_Clear();  // for example for an integer of 5000
                    // digits
  require(false, name, range,
          text.is_valid() ? nb::str(text).c_str() : "another value");
  return result;
}

void put(StateDict& state, const std::string& key, nb::handle value,
         const std::string& name) {
  if (nb::isinstance<nb::str>(value))
    state.put_text(key, value_of<std::string>(value, name, "text of UTF-8"));
  else if (nb::isinstance<nb::int_>(value))
    state.put_integer(key,
                      value_of<std::int64_t>(value, name, "in [-2^63, 2^63)"));
  else if (nb::isinstance<nb::float_>(value))
    state.put_real(key, nb::cast<double>(value));
  else if (is_array(value))
    state.put(key, ConstArray(value, name.c_str()).view());
  else
    throw nb::type_error((name + " must be an array, int, float or str, got " +
                          nb::inst_name(value).c_str())
                             .c_str());
}

}  // namespace

State to_python(StateDict&& state) {
  State all;
  std::vector<std::string> names;
  for (const auto& [name, values] : state.arrays()) names.push_back(name);
  for (const std::string& name : names)
    all[name.c_str()] = to_python(state.take(name));
  for (const auto& [name, value] : state.scalars())
    all[name.c_str()] = nb::cast(value);
  return all;
}

StateDict to_state(nb::handle mapping, const char* name) {
  if (!PyMapping_Check(mapping.ptr()))
    throw nb::type_error((std::string(name) + " must be a mapping, got " +
                          nb::inst_name(mapping).c_str())
                             .c_str());
  StateDict state;
  const auto items = nb::steal<nb::object>(PyMapping_Items(mapping.ptr()));
  if (!items.is_valid()) nb::raise_python_error();
  for (const nb::handle item : items) {
    const auto key = value_of<std::string>(
        item[0], std::string(name) + ": a name", "text of UTF-8");
    put(state, key, item[1], std::string(name) + "['" + key + "']");
  }
  return state;
}

}  // namespace thinwire::python
