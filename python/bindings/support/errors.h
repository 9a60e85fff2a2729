// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "bindings.h"

namespace thinwire::python {

/// "RuntimeError: text", and of our own errors the text alone. With the GIL.
[[nodiscard]] std::string text_of(const nb::python_error& error);

}  // namespace thinwire::python
