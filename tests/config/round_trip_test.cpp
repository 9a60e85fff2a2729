// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "config/any_config.h"
#include "config/keys.h"

namespace thinwire::config::round_trip_test {
namespace {

RC_GTEST_PROP(AnyConfig, IsReadAsItWasWritten, ()) {
  const Config config = test::any_config();
  const std::string text = config.to_json();
  const Config again = test::read_again(text);
  RC_ASSERT(again == config);
  RC_ASSERT(again.to_json() == text);
}

bool is_supported(const std::string& path) {
  const auto rules = key_rules();
  return std::any_of(rules.begin(), rules.end(), [&](const KeyRule& rule) {
    return rule.path == path && rule.status == KeyStatus::kSupported;
  });
}

RC_GTEST_PROP(AnyConfig, WritesSupportedKeysAndItsObjects, ()) {
  const Config config = test::any_config();
  std::vector<KeyNote> notes;
  static_cast<void>(test::read_again(config.to_json(), &notes));
  for (const KeyNote& note : notes)
    RC_ASSERT(is_supported(note.path) ||
              config.other_objects.contains(note.path));
}

RC_GTEST_PROP(AnySchedule, GivesRatesThatMakeSense, ()) {
  const LearningRateSchedule schedule = test::any_schedule();
  const std::int64_t applied = test::any_count(0);
  const double rate = schedule.rate(test::any_real(0, 1), applied);
  RC_ASSERT(std::isfinite(rate));
  RC_ASSERT(rate >= 0);
}

TEST(Config, WritesZerosWithoutASign) {
  const Config config = Config::from_json(R"({"gradient_clipping": -0.0})");
  EXPECT_EQ(Config::from_json(config.to_json()).to_json(), config.to_json());
}

TEST(Config, WritesItsDefaults) {
  EXPECT_EQ(Config::from_json(Config{}.to_json()), Config{});
  const Config low_bit{.optimizer = optim::OnebitAdamOptions{},
                       .semantics = Semantics::kDeepSpeed};
  EXPECT_EQ(Config::from_json(low_bit.to_json()), low_bit);
}

}  // namespace
}  // namespace thinwire::config::round_trip_test
