// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "bindings.h"
#include "support/gil.h"
#include "thinwire/core/error.h"
#include "thinwire/optim/optimizer.h"

namespace thinwire::python {

/// Returns a text such as "RuntimeError: text", or only the text for errors of
/// Thinwire. Call with the GIL.
[[nodiscard]] std::string text_of(const nb::python_error& error);

/// Calls body() with the GIL. Exceptions of Python become Errors with this
/// code.
template <class Body>
auto with_gil(ErrorCode code, Body&& body) {
  const Gil gil;
  if (!gil)
    throw Error(ErrorCode::kUnavailable, "the Python interpreter is ending");
  std::string text;
  try {
    return body();
  } catch (nb::python_error& error) {
    text = text_of(error);
  }
  throw Error(code, text);
}

/// Returns a step's listener that calls function(begin, end), which must
/// outlive it. It is empty for None. After an error only closing is allowed, as
/// after a lost rank.
inline optim::FinalRange final_range_of(nb::handle function) {
  if (function.is_none()) return {};
  return [function](Range range) {
    with_gil(ErrorCode::kCommFailure, [&] {
      static_cast<void>(call_python(nb::borrow(function),
                                    nb::make_tuple(range.offset, range.end())));
    });
  };
}

}  // namespace thinwire::python
