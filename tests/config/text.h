// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string_view>

#include "support/errors.h"
#include "thinwire/config/config.h"

// `test::` means these and what all modules share.
namespace thinwire::test {}
namespace thinwire::config::test {
using namespace thinwire::test;  // NOLINT(google-build-using-namespace)

inline Config read(std::string_view text) { return Config::from_json(text); }

inline void expect_rejected(std::string_view text,
                            std::initializer_list<std::string_view> parts) {
  SCOPED_TRACE(text);
  thinwire::test::expect_invalid(parts, [&] { static_cast<void>(read(text)); });
}

}  // namespace thinwire::config::test
