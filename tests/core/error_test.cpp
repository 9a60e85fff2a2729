// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/error.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace thinwire::error_test {
namespace {

TEST(ErrorCodes, HaveTheNamesOfTheirConstants) {
  EXPECT_STREQ(to_string(ErrorCode::kInvalidArgument), "InvalidArgument");
  EXPECT_STREQ(to_string(ErrorCode::kFailedPrecondition), "FailedPrecondition");
  EXPECT_STREQ(to_string(ErrorCode::kUnavailable), "Unavailable");
  EXPECT_STREQ(to_string(ErrorCode::kCommFailure), "CommFailure");
  EXPECT_STREQ(to_string(ErrorCode::kDeviceFailure), "DeviceFailure");
  EXPECT_STREQ(to_string(ErrorCode::kCorruptCheckpoint), "CorruptCheckpoint");
}

TEST(Errors, KeepCodeAndMessageAndAreRuntimeErrors) {
  try {
    throw Error(ErrorCode::kCommFailure, "rank 3 was lost");
  } catch (const std::runtime_error& caught) {
    const auto* error = dynamic_cast<const Error*>(&caught);
    ASSERT_NE(error, nullptr);
    EXPECT_EQ(error->code(), ErrorCode::kCommFailure);
    EXPECT_STREQ(error->what(), "rank 3 was lost");
  }
}

}  // namespace
}  // namespace thinwire::error_test
