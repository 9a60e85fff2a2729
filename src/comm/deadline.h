// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace thinwire::comm {

/// Returns now plus `timeout`, or the largest time point if that would
/// overflow.
[[nodiscard]] inline std::chrono::steady_clock::time_point deadline_after(
    std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto now = Clock::now();
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      Clock::time_point::max() - now);
  return timeout < left ? now + timeout : Clock::time_point::max();
}

}  // namespace thinwire::comm
