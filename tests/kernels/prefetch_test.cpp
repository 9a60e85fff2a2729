// SPDX-License-Identifier: Apache-2.0
// The choices for this processor are the target, and whether to prefetch.
#include "kernels/prefetch.h"

#include <gtest/gtest.h>

#include <string>

#include "support/errors.h"
#include "support/kernel_cases.h"
#include "thinwire/core/env.h"
#include "thinwire/kernels/cpu_target.h"
#include "thinwire/kernels/processor.h"

namespace thinwire::kernels::prefetch_test {
namespace {

using env::Prefetch;

TEST(PrefetchChoice, IsOnForProcessorsOnWhichItHelps) {
  const struct {
    const char* vendor;
    int family;
    bool on;
    const char* why;
  } cases[] = {{"GenuineIntel", 6, true, "Intel family 6"},
               {"AuthenticAMD", 23, false, "AMD family 23"},
               {"AuthenticAMD", 26, false, "AMD family 26"},
               {"HygonGenuine", 24, false, "Hygon family 24"},
               {"CentaurHauls", 7, false, "CentaurHauls family 7"},
               {"", 0, false, "a processor without CPUID"}};
  for (const auto& c : cases) {
    const Processor processor{.vendor = c.vendor, .family = c.family};
    const auto expect = [&](Prefetch variable, bool on, const char* why) {
      const PrefetchChoice choice = choose_prefetch(variable, processor);
      EXPECT_EQ(choice.on, on) << c.why;
      EXPECT_EQ(choice.why, why);
    };
    expect(Prefetch::kAuto, c.on, c.why);
    expect(Prefetch::kOn, true, "THINWIRE_PREFETCH=on");
    expect(Prefetch::kOff, false, "THINWIRE_PREFETCH=off");
  }
}

TEST(ForcedPrefetch, HoldsUntilItIsReset) {
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

// ---- targets

TEST(CpuTarget, TheBestOneIsUsedUnlessForced) {
  ASSERT_FALSE(cpu_targets().empty());
  EXPECT_EQ(cpu_target(), cpu_targets().front());
}

// cpu_target() is dispatched as every kernel is: the name comes from the code
// that was compiled for the target, not from what was asked for.
TEST(CpuTarget, TheForcedOneIsTheOneRunning) {
  for (const std::string& name : cpu_targets()) {
    force_cpu_target(name);
    EXPECT_EQ(cpu_target(), name);
  }
  force_cpu_target("");
  EXPECT_EQ(cpu_target(), cpu_targets().front());
}

TEST(CpuTarget, AnUnknownOneIsRefusedAndTheSupportedOnesAreNamed) {
  const std::string before = cpu_target();
  for (const std::string& name : cpu_targets())
    test::expect_invalid({"'AVX9'", name}, [] { force_cpu_target("AVX9"); });
  EXPECT_EQ(cpu_target(), before);
}

}  // namespace
}  // namespace thinwire::kernels::prefetch_test
