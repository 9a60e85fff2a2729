// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "bindings.h"

namespace thinwire::python {

/// Returns "RuntimeError: text", or only the text for our own errors. Call with
/// the GIL.
[[nodiscard]] std::string text_of(const nb::python_error& error);

}  // namespace thinwire::python
