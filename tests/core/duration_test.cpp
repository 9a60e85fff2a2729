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
  EXPECT_EQ(duration_from("500ms"), milliseconds(500));
  EXPECT_EQ(duration_from("05s"), std::chrono::seconds(5));
  EXPECT_EQ(duration_from("60s"), std::chrono::minutes(1));
  EXPECT_EQ(duration_from("2h"), std::chrono::hours(2));
  EXPECT_EQ(duration_from("3600000000ms"), std::chrono::hours(1000));
  EXPECT_EQ(to_text(std::chrono::seconds(3600)), "1h");
}

TEST(Duration, OtherTextsAreNone) {
  for (const char* text : {"",
                           "5",
                           "s",
                           "5 s",
                           " 5s",
                           "5s ",
                           "-5s",
                           "+5s",
                           "0s",
                           "1.5s",
                           "1e3ms",
                           "5S",
                           "5sec",
                           "5m",
                           "five",
                           "1001h",
                           "60001min",
                           "3600000001ms",
                           "0x5s",
                           "5smin",
                           "9223372036854775807h",
                           "99999999999999999999s"})
    EXPECT_EQ(duration_from(text), std::nullopt) << text;
}

}  // namespace
}  // namespace thinwire::duration_test
