// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/read/mean_of_ranks.h"

#include <gtest/gtest.h>

#include <vector>

#include "thinwire/core/dtype.h"

namespace thinwire::checkpoint::mean_of_ranks_test {
namespace {

// 1 + 2^-8 lies halfway between two bf16; a bit beyond what fp32 holds decides.
TEST(MeanOfRanks, IsRoundedOnce) {
  for (const double sign : {1.0, -1.0}) {
    MeanOfRanks mean(1);
    for (const double value : {2 + 0x1p-7, 0x1p-40}) {
      const std::vector<float> one{static_cast<float>(sign * value)};
      mean.add(one, 0);
    }
    std::vector<BFloat16> rounded(1);
    mean.write(rounded);
    EXPECT_EQ(to_float(rounded[0]), sign * (1 + 0x1p-7));
    std::vector<float> exact(1);
    mean.write(exact);
    EXPECT_EQ(exact[0], sign * (1 + 0x1p-8));
  }
}

}  // namespace
}  // namespace thinwire::checkpoint::mean_of_ranks_test
