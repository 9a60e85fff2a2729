// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "bindings.h"
#include "thinwire/checkpoint/options.h"

namespace thinwire::python {

/// _core.Extra. Not copyable, because its arrays are not, which the type of a
/// StateDict does not show.
struct Additions : checkpoint::Extra {
  Additions() = default;
  Additions(const Additions&) = delete;
  Additions& operator=(const Additions&) = delete;

  /// Returns `self`, or no additions for null.
  [[nodiscard]] static const checkpoint::Extra& get(const Additions* self);
};

}  // namespace thinwire::python
