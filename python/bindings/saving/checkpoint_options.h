// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "bindings.h"
#include "thinwire/checkpoint/options.h"

namespace thinwire::python {

/// _core.Extra. Its arrays are not copied, which a StateDict does not say of
/// itself.
struct Additions : checkpoint::Extra {
  Additions() = default;
  Additions(const Additions&) = delete;
  Additions& operator=(const Additions&) = delete;

  /// Those of null are none.
  [[nodiscard]] static const checkpoint::Extra& get(const Additions* self);
};

}  // namespace thinwire::python
