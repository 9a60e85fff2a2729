// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "thinwire/core/error.h"

/// Functions that reject arguments and calls. Their messages name the argument,
/// its range and the value given. docs/errors.md lists the codes.
namespace thinwire {

/// Throws Error(kInvalidArgument), because an argument, option or text is
/// wrong.
[[noreturn]] inline void reject(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message);
}

/// Throws Error(kFailedPrecondition), because the object's present state
/// forbids the call.
[[noreturn]] inline void refuse(const std::string& message) {
  throw Error(ErrorCode::kFailedPrecondition, message);
}

/// Throws reject("NAME must be RANGE, got VALUE") unless the condition holds.
template <class T>
void require(bool holds, std::string_view name, std::string_view range,
             const T& value) {
  if (!holds) reject(fmt::format("{} must be {}, got {}", name, range, value));
}

}  // namespace thinwire
