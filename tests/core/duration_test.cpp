// SPDX-License-Identifier: Apache-2.0
#include "core/duration.h"

#include <gtest/gtest.h>

namespace thinwire::duration_test {
namespace {

using std::chrono::milliseconds;

TEST(Duration, IsWrittenAsItIsRead) {
  for (const char* text : {"1ms", "999ms", "1001ms", "5s", "90s", "10min",
                           "61min", "2h", "1000h"}) {
    ASSERT_TRUE(duration_from(text).has_value()) << text;
    EXPECT_EQ(to_text(*duration_from(text)), text);
  }
  EXPECT_EQ(duration_from("60s"), std::chrono::minutes(1));
  EXPECT_EQ(to_text(std::chrono::seconds(3600)), "1h");
}

TEST(Duration, OtherTextsAreNone) {
  for (const char* text :
       {"", "5", "s", "0s", "-1s", "+1s", " 5s", "5 s", "5S", "1.5s", "1001h",
        "60001min", "99999999999999999999s", "5smin"})
    EXPECT_EQ(duration_from(text), std::nullopt) << text;
}

}  // namespace
}  // namespace thinwire::duration_test
