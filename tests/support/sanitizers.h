// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

namespace thinwire::test {

/// Returns `all`, or only the first `few` under a sanitizer, which would see
/// the same accesses again, ten times as slowly.
template <class T>
[[nodiscard]] std::vector<T> fewer_if_sanitized(
    std::vector<T> all, [[maybe_unused]] std::size_t few) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  all.resize(few);
#endif
  return all;
}

}  // namespace thinwire::test
