// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/arrays.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::python {

/// _core.Others: tensors beside the trainable parameters, kept alive.
struct Others {
  std::vector<Array> held;
  std::vector<checkpoint::OtherTensor> tensors;
  std::vector<std::pair<std::string, std::string>> aliases;
};

/// Collective, without the GIL: what `callable` returns, None or nothing
/// standing for no others. Throws on all ranks where it raises on one of them;
/// there, what it raised.
[[nodiscard]] Others ask(nb::handle callable, comm::Communicator& comm);

void bind_others(nb::module_& module);

}  // namespace thinwire::python
