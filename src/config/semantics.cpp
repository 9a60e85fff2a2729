// SPDX-License-Identifier: Apache-2.0
#include "thinwire/config/semantics.h"

#include <fmt/format.h>

#include "thinwire/core/error.h"

namespace thinwire::config {

std::string_view to_string(Semantics semantics) noexcept {
  return semantics == Semantics::kCorrected ? "corrected" : "deepspeed";
}

Semantics semantics_from(std::string_view name) {
  for (const Semantics semantics :
       {Semantics::kCorrected, Semantics::kDeepSpeed})
    if (name == to_string(semantics)) return semantics;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("semantics must be corrected or deepspeed, got '{}'", name));
}

}  // namespace thinwire::config
