// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cpu_target.h"

#include <gtest/gtest.h>

#include <string>

#include "thinwire/core/error.h"

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
  try {
    force_cpu_target("AVX9");
    FAIL() << "was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    const std::string message = error.what();
    EXPECT_NE(message.find("'AVX9'"), std::string::npos) << message;
    for (const std::string& name : cpu_targets()) {
      EXPECT_NE(message.find(name), std::string::npos) << message;
    }
  }
  EXPECT_EQ(cpu_target(), before);
}

}  // namespace
}  // namespace thinwire::kernels::cpu_target_test
