// SPDX-License-Identifier: Apache-2.0
#include "kernels/prefetch.h"

#include <gtest/gtest.h>

#include <string>

#include "support/kernel_cases.h"
#include "thinwire/core/env.h"
#include "thinwire/kernels/processor.h"

namespace thinwire::kernels::prefetch_test {
namespace {

using env::Prefetch;

PrefetchChoice automatic(const char* vendor, int family) {
  return choose_prefetch(Prefetch::kAuto, {.vendor = vendor, .family = family});
}

TEST(PrefetchChoice, IsOnForIntel) {
  const PrefetchChoice choice = automatic("GenuineIntel", 6);
  EXPECT_TRUE(choice.on);
  EXPECT_EQ(choice.why, "Intel family 6");
}

TEST(PrefetchChoice, IsOffForAmdAndItsLicensees) {
  for (const int family : {23, 25, 26}) {
    const PrefetchChoice choice = automatic("AuthenticAMD", family);
    EXPECT_FALSE(choice.on);
    EXPECT_EQ(choice.why, "AMD family " + std::to_string(family));
  }
  EXPECT_FALSE(automatic("HygonGenuine", 24).on);
  EXPECT_EQ(automatic("HygonGenuine", 24).why, "Hygon family 24");
}

TEST(PrefetchChoice, IsOffWhereNobodyHasMeasured) {
  EXPECT_FALSE(automatic("CentaurHauls", 7).on);
  EXPECT_EQ(automatic("CentaurHauls", 7).why, "CentaurHauls family 7");
  EXPECT_FALSE(automatic("", 0).on);
  EXPECT_EQ(automatic("", 0).why, "a processor without CPUID");
}

TEST(PrefetchChoice, TheVariableIsStrongerThanTheProcessor) {
  for (const char* vendor : {"GenuineIntel", "AuthenticAMD", ""}) {
    const Processor processor{.vendor = vendor, .family = 6};
    const PrefetchChoice on = choose_prefetch(Prefetch::kOn, processor);
    EXPECT_TRUE(on.on);
    EXPECT_EQ(on.why, "THINWIRE_PREFETCH=on");
    const PrefetchChoice off = choose_prefetch(Prefetch::kOff, processor);
    EXPECT_FALSE(off.on);
    EXPECT_EQ(off.why, "THINWIRE_PREFETCH=off");
  }
}

TEST(ForcedPrefetch, HoldsUntilItIsTakenBack) {
  const bool chosen = prefetches();
  const std::string reason = prefetch_reason();
  for (const bool on : {true, false}) {
    const test::ForcedPrefetch forced(on);
    EXPECT_EQ(prefetches(), on);
    EXPECT_EQ(prefetch_reason(), reason) << "of what was chosen";
  }
  EXPECT_EQ(prefetches(), chosen);
}

TEST(ProcessorName, HasNeitherBlanksAroundItNorOtherBytes) {
  const std::string name = processor_name();
  ASSERT_FALSE(name.empty());
  EXPECT_NE(name.front(), ' ');
  EXPECT_NE(name.back(), ' ');
  for (const char c : name) EXPECT_TRUE(c >= ' ' && c <= '~') << name;
}

}  // namespace
}  // namespace thinwire::kernels::prefetch_test
