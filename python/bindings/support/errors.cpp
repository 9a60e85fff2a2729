// SPDX-License-Identifier: Apache-2.0
#include "support/errors.h"

#include <exception>
#include <string>
#include <string_view>

#include "config/archive.h"
#include "thinwire/core/error.h"

namespace thinwire::python {
namespace {

// Messages may quote text that is not UTF-8, such as the value of a variable or
// the name of a file.
nb::object to_text(std::string_view text) {
  return nb::steal<nb::object>(PyUnicode_DecodeUTF8(
      text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

// The class is looked up late, because thinwire.errors is imported after this
// module.
void raise(const Error& error) {
  try {
    const nb::object kind = nb::module_::import_("thinwire.errors")
                                .attr("BY_CODE")[to_string(error.code())];
    PyErr_SetObject(kind.ptr(), to_text(error.what()).ptr());
  } catch (nb::python_error& lookup) {
    lookup.restore();
  }
}

void translate(const std::exception_ptr& thrown, void* /*payload*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const config::WrongType& error) {
    PyErr_SetObject(PyExc_TypeError, to_text(error.what()).ptr());
  } catch (const Error& error) {
    raise(error);
  }
}

}  // namespace

std::string text_of(const nb::python_error& error) {
  const nb::handle kind = error.type();
  const std::string text = nb::str(error.value()).c_str();
  if (nb::hasattr(kind, "code") && nb::isinstance<nb::str>(kind.attr("code")))
    return text;
  return std::string(nb::str(kind.attr("__name__")).c_str()) + ": " + text;
}

void bind_errors(nb::module_& /*module*/) {
  nb::register_exception_translator(translate);
}

}  // namespace thinwire::python
