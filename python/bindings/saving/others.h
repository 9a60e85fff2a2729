// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "support/arrays.h"
#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::python {

/// _core.Others: tensors beside the trainable parameters, which it keeps alive.
struct Others {
  std::vector<Array> held;
  std::vector<checkpoint::OtherTensor> tensors;
  std::vector<std::pair<std::string, std::string>> aliases;
};

/// Returns the result of `callable`; None means no others. Collective, without
/// the GIL. If `callable` raises on one rank, throws on all; that rank throws
/// its exception.
[[nodiscard]] Others ask(nb::handle callable, comm::Communicator& comm);

void bind_others(nb::module_& module);

}  // namespace thinwire::python
