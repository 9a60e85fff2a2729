// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/arrays.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::python {

/// _core.Others: tensors that are not trainable parameters, and are kept alive.
struct Others {
  std::vector<Array> held;
  std::vector<checkpoint::OtherTensor> tensors;
  std::vector<std::pair<std::string, std::string>> aliases;
};

/// Returns the result of `callable`, where None means no tensors. If `callable`
/// raises on one rank, throws on all; that rank throws its exception. Called
/// without the GIL. Collective.
[[nodiscard]] Others ask(nb::handle callable, comm::Communicator& comm);

void bind_others(nb::module_& module);

}  // namespace thinwire::python
