// SPDX-License-Identifier: Apache-2.0
// Training that ends before its time.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <vector>

#include "thinwire/core/error.h"
#include "zero/support.h"

namespace thinwire::test {

inline constexpr auto kFailure = ErrorCode::kCommFailure;
/// Long: whoever ends well before it has been told, and has not timed out.
inline constexpr comm::CommunicatorOptions kLong{.timeout =
                                                     std::chrono::minutes(2)};

inline void expect_soon(const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  body();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
}

inline std::vector<float> ones(const ZeroRun& run) {
  return std::vector<float>(run.layout.size(), 1);
}

/// The gradients of parameters number `from` and below, the last one first.
inline void collect_some(ZeroRun& run, const Buffer& grads, std::size_t from) {
  for (std::size_t i = run.layout.parameters().size(); i-- > from;) {
    const Parameter& p = run.layout.parameters()[i];
    run.optimizer->gradients().collect(i,
                                       grads.view().subview(p.offset, p.size));
  }
}

}  // namespace thinwire::test
