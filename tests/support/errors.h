// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "thinwire/core/error.h"

namespace thinwire::test {

/// Expects that `call` throws Error(code) whose message has all of `parts`.
inline void expect_error(ErrorCode code,
                         std::initializer_list<std::string_view> parts,
                         const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string_view part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "\"" << part << "\" is not in: " << error.what();
    }
    return;
  }
  ADD_FAILURE() << "no Error was thrown";
}

/// Expects an error with kInvalidArgument.
inline void expect_invalid(std::initializer_list<std::string_view> parts,
                           const std::function<void()>& call) {
  expect_error(ErrorCode::kInvalidArgument, parts, call);
}

}  // namespace thinwire::test
