// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/environment.h"
#include "support/errors.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/cpu_target.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/kernels/processor.h"
#include "thinwire/kernels/quantize.h"

namespace thinwire::kernels::prefetch_variable_test {
namespace {

// The first kernel of the process decides, so this test comes first.
TEST(SimdVariable, IsRefusedByTheFirstKernelAndHoldsOnceValid) {
  const std::string worst = cpu_targets().back();
  std::vector<float> values(100, 1.0f);
  const auto add = [&] { accumulate(View(values), ConstView(values)); };
  for (const char* const bad : {"AVX9", "avx2"}) {
    const test::ScopedVariable variable("THINWIRE_SIMD", bad);
    for (int times = 0; times < 2; ++times)
      test::expect_invalid({"THINWIRE_SIMD must be one of ", worst, bad}, add);
    EXPECT_EQ(values, std::vector<float>(100, 1.0f));
  }
  {
    const test::ScopedVariable variable("THINWIRE_SIMD", worst.c_str());
    EXPECT_EQ(cpu_target(), worst);
  }
  EXPECT_EQ(cpu_target(), worst);
  force_cpu_target(cpu_targets().front());
  EXPECT_EQ(cpu_target(), cpu_targets().front());
}

// One test, because what is decided first holds for the whole process.
TEST(PrefetchVariable, IsRefusedBeforeAnythingIsWrittenAndHoldsOnceValid) {
  std::vector<float> values(100, 1.0f);
  std::vector<std::uint32_t> words(100);
  const std::vector<std::uint32_t> none(4);  // every element is masked
  const auto run = [&] {
    return quantize(values.data(), 8, words.data(), none.data(), values.size());
  };
  {
    const test::ScopedVariable bad("THINWIRE_PREFETCH", "fast");
    for (int times = 0; times < 2; ++times) {
      test::expect_invalid({"THINWIRE_PREFETCH", "auto, on or off", "'fast'"},
                           [&] { (void)run(); });
      test::expect_invalid({"THINWIRE_PREFETCH"}, [] { (void)prefetches(); });
    }
    EXPECT_EQ(values, std::vector<float>(100, 1.0f));
    EXPECT_EQ(words, std::vector<std::uint32_t>(100));
  }
  {
    const test::ScopedVariable on("THINWIRE_PREFETCH", "on");
    EXPECT_TRUE(prefetches());
    EXPECT_EQ(prefetch_reason(), "THINWIRE_PREFETCH=on");
  }
  const test::ScopedVariable later("THINWIRE_PREFETCH", "off");
  EXPECT_TRUE(prefetches());
  EXPECT_EQ(run(), 0.0f);
  EXPECT_EQ(values, std::vector<float>(100));
}

}  // namespace
}  // namespace thinwire::kernels::prefetch_variable_test
