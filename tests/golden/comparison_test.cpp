// SPDX-License-Identifier: Apache-2.0
#include "apps/thinwire/replay/comparison.h"

#include <gtest/gtest.h>

#include <cmath>

namespace thinwire::replay::comparison_test {
namespace {

TEST(Comparison, NamesStepArrayTensorElementAndRank) {
  Comparison comparison(1, {2, 3});
  comparison.floats({7, "exp_avg"}, std::vector<float>{1, 2, 3, 4, 5},
                    std::vector<float>{1, 2, 3, 4.5f, 6});
  EXPECT_EQ(comparison.difference().value_or(""),
            "step 7, exp_avg, tensor 1, element 1, rank 1: got 0x40800000 (4) "
            "want 0x40900000 (4.5)");
}

TEST(Comparison, TellsZerosApartButNotNans) {
  Comparison nans(0, {});
  nans.floats({0, "x"}, std::vector<float>{NAN},
              std::vector<float>{-std::nanf("1")});
  EXPECT_FALSE(nans.difference());
  Comparison zeros(0, {});
  zeros.floats({0, "x"}, std::vector<float>{0.0f}, std::vector<float>{-0.0f});
  EXPECT_TRUE(zeros.difference());
}

TEST(Comparison, KeepsTheFirstDifference) {
  Comparison comparison(0, {});
  comparison.text({1, "a"}, "1", "1");
  comparison.text({2, "b"}, "1", "2");
  comparison.bytes({3, "c"}, {}, std::vector<std::uint8_t>{1});
  EXPECT_EQ(comparison.difference().value_or(""),
            "step 2, b, rank 0: got 1 want 2");
  EXPECT_EQ(comparison.difference_step(), 2u);
}

}  // namespace
}  // namespace thinwire::replay::comparison_test
