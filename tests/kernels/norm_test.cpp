// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "support/kernel_cases.h"
#include "support/values.h"
#include "thinwire/core/error.h"

namespace thinwire::kernels::norm_test {
namespace {

class Norm : public test::KernelTest {
 protected:
  template <class T>
  void compare_sums(const std::vector<float>& values) {
    const auto sum_up = [](auto run, auto x, auto sums) { run(x, sums); };
    const auto x = test::rounded_to<T>(values);
    const std::vector<double> sums(sum_chunks(size));
    compare(chunk_sums_of_squares, ref::chunk_sums_of_squares, sum_up, x, sums);
    compare(chunk_sums_of_abs, ref::chunk_sums_of_abs, sum_up, x, sums);
    compare(
        sum_of_squares, ref::sum_of_squares,
        [](auto run, auto of, auto sum) { sum[0] = run(of); }, x,
        std::vector<double>(1));
  }
};

TEST_P(Norm, EqualsReferenceBitForBit) {
  std::vector<float> special = test::normal_and_special(size, 2);
  for (const auto& x : {test::normal(size, 1), special}) {
    compare_sums<float>(x);
    compare_sums<Half>(x);
    compare_sums<BFloat16>(x);
  }
  // And without NaN and inf, which hide everything else in a sum.
  for (float& value : special) value = std::isfinite(value) ? value : -0.0f;
  compare_sums<float>(special);
}

INSTANTIATE_TEST_SUITE_P(All, Norm, test::kernel_cases({16384, 65537}),
                         test::case_name);

using Sums = std::vector<double>;

Sums squares(ConstView values) {
  Sums sums(sum_chunks(values.size()));
  ref::chunk_sums_of_squares(values, sums);
  return sums;
}
Sums abs(ConstView values) {
  Sums sums(sum_chunks(values.size()));
  ref::chunk_sums_of_abs(values, sums);
  return sums;
}

TEST(NormValues, SumsOfSmallIntegersAreExact) {
  std::vector<float> x(1000);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i + 1) * (i % 2 == 0 ? 1.0f : -1.0f);
  }
  // n (n + 1) (2 n + 1) / 6 and n (n + 1) / 2
  EXPECT_EQ(squares(x), Sums{333'833'500.0});
  EXPECT_EQ(abs(x), Sums{500'500.0});
}

TEST(NormValues, SixteenBitValuesAreWidenedExactly) {
  // 1.5, -2, the largest, and the smallest subnormal of each type.
  const std::vector<Half> half = {{0x3e00}, {0xc000}, {0x7bff}, {0x0001}};
  const std::vector<BFloat16> bfloat16 = {
      {0x3fc0}, {0xc000}, {0x7f7f}, {0x0001}};
  const double largest = 0x1.fep127;
  EXPECT_EQ(abs(half), Sums{1.5 + 2 + 65504 + 0x1p-24});
  EXPECT_EQ(squares(ConstView(bfloat16).subview(2, 1)),
            Sums{largest * largest});
  EXPECT_EQ(abs(ConstView(bfloat16).subview(0, 2)), Sums{3.5});
  EXPECT_EQ(abs(ConstView(bfloat16).subview(3, 1)), Sums{0x1p-133});
}

// 2^53 absorbs a 1 that is added to it, but not a 2: so the result tells which
// numbers met first.
TEST(NormValues, ElementsAreAddedInTheDefinedOrder) {
  const auto sum = [](std::size_t first, std::size_t second) {
    std::vector<float> x(48, 0.0f);
    x[0] = 0x1p53f;
    x[first] = 1;
    x[second] = 1;
    return abs(x)[0];
  };
  EXPECT_EQ(sum(16, 32), 0x1p53);     // both to 0
  EXPECT_EQ(sum(1, 17), 0x1p53 + 2);  // both to 1
  EXPECT_EQ(sum(1, 9), 0x1p53 + 2);   // 1 + 9 first
  EXPECT_EQ(sum(8, 4), 0x1p53);       // 0 + 8, then 0 + 4
  EXPECT_EQ(sum(4, 12), 0x1p53 + 2);  // 4 + 12 first
  EXPECT_EQ(sum(2, 6), 0x1p53 + 2);   // 2 + 6 first
  EXPECT_EQ(sum(1, 2), 0x1p53);       // 0 + 2, then 0 + 1
  EXPECT_EQ(sum(1, 3), 0x1p53 + 2);   // 1 + 3 first
}

TEST(NormValues, AChunkContainsOnlyItsOwnElements) {
  std::vector<float> x(2 * kSumChunk + 1, 0.0f);
  x[kSumChunk - 1] = 3;
  x[kSumChunk] = 4;
  x[2 * kSumChunk] = 5;
  ASSERT_EQ(sum_chunks(x.size()), 3u);
  EXPECT_EQ(squares(x), (Sums{9, 16, 25}));
  EXPECT_EQ(abs(x), (Sums{3, 4, 5}));
  EXPECT_EQ(ref::sum_of_squares(x), 50);
}

// What several ranks add up of their parts is what one adds up of all.
TEST(NormValues, APartOnTheGridHasTheSameChunks) {
  const std::vector<float> x = test::normal(4 * kSumChunk + 77, 5);
  const Sums whole = squares(x);
  Sums parts;
  for (const auto& [offset, size] : {std::pair{std::size_t{0}, kSumChunk},
                                     {kSumChunk, std::size_t{0}},
                                     {kSumChunk, 2 * kSumChunk},
                                     {3 * kSumChunk, kSumChunk + 77}}) {
    const Sums sums = squares(ConstView(x).subview(offset, size));
    parts.insert(parts.end(), sums.begin(), sums.end());
  }
  EXPECT_EQ(parts, whole);
  EXPECT_EQ(ref::sum_of_squares(x), sum_of_chunks(parts));
}

// By values whose sum depends on the order: 2^53 takes 2, but not 1.
TEST(NormValues, ChunksAreAddedInGroupsAsElementsAreInChunks) {
  const auto sum = [](std::size_t chunks, std::size_t large, std::size_t one,
                      std::size_t other) {
    Sums sums(chunks);
    sums[large] = 0x1p53;
    sums[one] = 1;
    sums[other] = 1;
    return sum_of_chunks(sums);
  };
  EXPECT_EQ(sum(64, 0, 16, 32), 0x1p53);  // one accumulator, in order
  EXPECT_EQ(sum(64, 32, 0, 16), 0x1p53 + 2);
  EXPECT_EQ(sum(16, 1, 2, 6), 0x1p53 + 2);          // 2 + 6 first
  EXPECT_EQ(sum(16, 0, 1, 2), 0x1p53);              // 0 + 2, then 0 + 1
  EXPECT_EQ(sum(2048, 0, 1024, 1025), 0x1p53 + 2);  // the next group's own sum
  EXPECT_EQ(sum(3072, 0, 1024, 2048), 0x1p53);      // groups in order
  EXPECT_EQ(sum_of_chunks({}), 0);
}

TEST(NormValues, OmittedChunksCountAsZero) {
  Sums sums(3000);
  ChunkTotal<> some;
  for (const std::size_t chunk : {3u, 18u, 19u, 1023u, 1024u, 2999u}) {
    sums[chunk] = 1 / static_cast<double>(chunk);
    some.add(chunk, sums[chunk]);
  }
  EXPECT_EQ(some.total(), sum_of_chunks(sums));
}

TEST(NormValues, SquaresAreFiniteExactlyIfTheElementsAre) {
  using limits = std::numeric_limits<float>;
  std::vector<float> x(kSumChunk, limits::max());
  EXPECT_TRUE(std::isfinite(ref::sum_of_squares(x)));
  for (const float bad :
       {limits::infinity(), -limits::infinity(), limits::quiet_NaN()}) {
    x[123] = bad;
    EXPECT_FALSE(std::isfinite(ref::sum_of_squares(x)));
    x[123] = limits::max();
  }
}

TEST(NormArguments, WrongTypesAndNumbersOfSumsAreRefused) {
  const std::vector<double> doubles(3);
  const std::vector<float> floats(kSumChunk);
  Sums one(1, 7.0), two(2, 7.0);
  for (const auto run : {chunk_sums_of_squares, ref::chunk_sums_of_squares,
                         chunk_sums_of_abs, ref::chunk_sums_of_abs}) {
    EXPECT_THROW(run(doubles, one), Error);
    EXPECT_THROW(run(floats, two), Error);
    EXPECT_THROW(run(floats, {}), Error);
    EXPECT_THROW(run(ConstView(), two), Error);
  }
  for (const auto run : {sum_of_squares, ref::sum_of_squares})
    EXPECT_THROW((void)run(doubles), Error);
  EXPECT_EQ(one, Sums{7});
  EXPECT_EQ(two, (Sums{7, 7}));
}

}  // namespace
}  // namespace thinwire::kernels::norm_test
