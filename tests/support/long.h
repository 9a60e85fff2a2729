// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>

namespace thinwire::test {

/// Returns whether THINWIRE_TEST_LONG is set, as by ./test --long, so that
/// tests run everything, for minutes.
[[nodiscard]] inline bool is_long() {
  return std::getenv("THINWIRE_TEST_LONG") != nullptr;
}

}  // namespace thinwire::test
