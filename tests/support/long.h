// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace thinwire::test {

/// THINWIRE_TEST_LONG is set, as by ./test --long: everything, for minutes.
[[nodiscard]] inline bool is_long() {
  return std::getenv("THINWIRE_TEST_LONG") != nullptr;
}

}  // namespace thinwire::test
