// SPDX-License-Identifier: Apache-2.0
// Groups of ranks that end before their time.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <stdexcept>

#include "thinwire/comm/local.h"
#include "thinwire/core/error.h"

namespace thinwire::test {

inline constexpr auto kFailure = ErrorCode::kCommFailure;
/// A rank that ends well before this time has received an error, and has not
/// timed out.
inline constexpr comm::CommunicatorOptions kLong{.timeout =
                                                     std::chrono::minutes(2)};

inline void expect_soon(const std::function<void()>& body) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  body();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
}

/// Calls body(communicator) for ranks that all end soon.
inline void end_soon(int world,
                     const std::function<void(comm::Communicator&)>& body) {
  expect_soon([&] { comm::run_local_ranks(world, body, kLong); });
}

/// Calls body(communicator) for ranks of which one throws std::runtime_error
/// before any other fails. All of them end soon.
inline void lose_one(int world,
                     const std::function<void(comm::Communicator&)>& body) {
  expect_soon([&] {
    EXPECT_THROW(comm::run_local_ranks(world, body, kLong), std::runtime_error);
  });
}

}  // namespace thinwire::test
