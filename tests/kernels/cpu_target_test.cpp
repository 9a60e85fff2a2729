// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cpu_target.h"

#include <gtest/gtest.h>

#include <string>

#include "support/errors.h"

namespace thinwire::kernels::cpu_target_test {
namespace {

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
    test::expect_error(ErrorCode::kInvalidArgument, {"'AVX9'", name},
                       [] { force_cpu_target("AVX9"); });
  EXPECT_EQ(cpu_target(), before);
}

}  // namespace
}  // namespace thinwire::kernels::cpu_target_test
