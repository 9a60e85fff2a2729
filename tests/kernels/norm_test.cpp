// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "support/guarded.h"
#include "support/kernel_cases.h"
#include "support/values.h"
#include "thinwire/core/error.h"

namespace thinwire::kernels::norm_test {
namespace {

using test::Guarded;
using test::same_bits;

template <class T>
void expect_equals_reference(const std::vector<float>& values,
                             std::size_t skip) {
  Guarded x(test::rounded_to<T>(values), skip);
  std::vector<double> have(sum_chunks(values.size()));
  std::vector<double> want(have.size());
  chunk_sums_of_squares(x.span(), have);
  ref::chunk_sums_of_squares(x.span(), want);
  EXPECT_TRUE(same_bits<double>(have, want));
  EXPECT_TRUE(
      same_bits(sum_of_squares(x.span()), ref::sum_of_squares(x.span())));
  chunk_sums_of_abs(x.span(), have);
  ref::chunk_sums_of_abs(x.span(), want);
  EXPECT_TRUE(same_bits<double>(have, want));
}

class Norm : public test::KernelTest {};

TEST_P(Norm, EqualsReferenceBitForBit) {
  const std::vector<float> x = test::normal(size, 1);
  expect_equals_reference<float>(x, skip);
  expect_equals_reference<Half>(x, skip);
  expect_equals_reference<BFloat16>(x, skip);
}

TEST_P(Norm, EqualsReferenceWithSpecialValues) {
  std::vector<float> x = test::normal_and_special(size, 2);
  expect_equals_reference<float>(x, skip);
  expect_equals_reference<Half>(x, skip);
  expect_equals_reference<BFloat16>(x, skip);
  // And without NaN and inf, which hide everything else in a sum.
  for (float& value : x) value = std::isfinite(value) ? value : -0.0f;
  expect_equals_reference<float>(x, skip);
}

INSTANTIATE_TEST_SUITE_P(All, Norm, test::kernel_cases({16384, 65537}),
                         test::case_name);

using Sums = std::vector<double>;

/// Both implementations, for what can be told without the other.
struct Impl {
  const char* name;
  void (*squares_of)(ConstView, std::span<double>);
  void (*abs_of)(ConstView, std::span<double>);
  double (*sum_of_squares)(ConstView);

  [[nodiscard]] Sums squares(ConstView values) const {
    Sums sums(sum_chunks(values.size()));
    squares_of(values, sums);
    return sums;
  }
  [[nodiscard]] Sums abs(ConstView values) const {
    Sums sums(sum_chunks(values.size()));
    abs_of(values, sums);
    return sums;
  }
};
constexpr Impl kImpls[] = {
    {"ref", ref::chunk_sums_of_squares, ref::chunk_sums_of_abs,
     ref::sum_of_squares},
    {"cpu", chunk_sums_of_squares, chunk_sums_of_abs, sum_of_squares}};

TEST(NormValues, SumsOfSmallIntegersAreExact) {
  std::vector<float> x(1000);
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<float>(i + 1) * (i % 2 == 0 ? 1.0f : -1.0f);
  }
  for (const Impl& impl : kImpls) {
    // n (n + 1) (2 n + 1) / 6 and n (n + 1) / 2
    EXPECT_EQ(impl.squares(x), Sums{333'833'500.0}) << impl.name;
    EXPECT_EQ(impl.abs(x), Sums{500'500.0}) << impl.name;
  }
}

TEST(NormValues, SixteenBitValuesAreWidenedExactly) {
  // 1.5, -2, the largest, and the smallest subnormal of each type.
  const std::vector<Half> half = {{0x3e00}, {0xc000}, {0x7bff}, {0x0001}};
  const std::vector<BFloat16> bfloat16 = {
      {0x3fc0}, {0xc000}, {0x7f7f}, {0x0001}};
  const double largest = 0x1.fep127;
  for (const Impl& impl : kImpls) {
    EXPECT_EQ(impl.abs(half), Sums{1.5 + 2 + 65504 + 0x1p-24}) << impl.name;
    EXPECT_EQ(impl.squares(ConstView(bfloat16).subview(2, 1)),
              Sums{largest * largest})
        << impl.name;
    EXPECT_EQ(impl.abs(ConstView(bfloat16).subview(0, 2)), Sums{3.5});
    EXPECT_EQ(impl.abs(ConstView(bfloat16).subview(3, 1)), Sums{0x1p-133});
  }
}

// 2^53 absorbs a 1 that is added to it, but not a 2: so the result tells which
// numbers met first.
TEST(NormValues, ElementsAreAddedInTheDefinedOrder) {
  const auto sum = [](const Impl& impl, std::size_t first, std::size_t second) {
    std::vector<float> x(48, 0.0f);
    x[0] = 0x1p53f;
    x[first] = 1;
    x[second] = 1;
    return impl.abs(x)[0];
  };
  for (const Impl& impl : kImpls) {
    EXPECT_EQ(sum(impl, 16, 32), 0x1p53) << impl.name;     // both to 0
    EXPECT_EQ(sum(impl, 1, 17), 0x1p53 + 2) << impl.name;  // both to 1
    EXPECT_EQ(sum(impl, 1, 9), 0x1p53 + 2) << impl.name;   // 1 + 9 first
    EXPECT_EQ(sum(impl, 8, 4), 0x1p53) << impl.name;       // 0 + 8, then 0 + 4
    EXPECT_EQ(sum(impl, 4, 12), 0x1p53 + 2) << impl.name;  // 4 + 12 first
    EXPECT_EQ(sum(impl, 2, 6), 0x1p53 + 2) << impl.name;   // 2 + 6 first
    EXPECT_EQ(sum(impl, 1, 2), 0x1p53) << impl.name;       // 0 + 2, then 0 + 1
    EXPECT_EQ(sum(impl, 1, 3), 0x1p53 + 2) << impl.name;   // 1 + 3 first
  }
}

TEST(NormValues, AChunkHoldsItsOwnElementsOnly) {
  std::vector<float> x(2 * kSumChunk + 1, 0.0f);
  x[kSumChunk - 1] = 3;
  x[kSumChunk] = 4;
  x[2 * kSumChunk] = 5;
  ASSERT_EQ(sum_chunks(x.size()), 3u);
  for (const Impl& impl : kImpls) {
    EXPECT_EQ(impl.squares(x), (Sums{9, 16, 25})) << impl.name;
    EXPECT_EQ(impl.abs(x), (Sums{3, 4, 5})) << impl.name;
    EXPECT_EQ(impl.sum_of_squares(x), 50) << impl.name;
  }
}

// What several ranks add up of their parts is what one adds up of all.
TEST(NormValues, APartOnTheGridHasTheSameChunks) {
  const std::vector<float> x = test::normal(4 * kSumChunk + 77, 5);
  for (const Impl& impl : kImpls) {
    const Sums whole = impl.squares(x);
    Sums parts;
    for (const auto& [offset, size] : {std::pair{std::size_t{0}, kSumChunk},
                                       {kSumChunk, std::size_t{0}},
                                       {kSumChunk, 2 * kSumChunk},
                                       {3 * kSumChunk, kSumChunk + 77}}) {
      const Sums sums = impl.squares(ConstView(x).subview(offset, size));
      parts.insert(parts.end(), sums.begin(), sums.end());
    }
    EXPECT_EQ(parts, whole) << impl.name;
    EXPECT_EQ(impl.sum_of_squares(x), sum_of_chunks(parts)) << impl.name;
  }
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

TEST(NormValues, ChunksThatDoNotComeCountAsZero) {
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
  for (const Impl& impl : kImpls) {
    EXPECT_TRUE(std::isfinite(impl.sum_of_squares(x))) << impl.name;
    for (const float bad :
         {limits::infinity(), -limits::infinity(), limits::quiet_NaN()}) {
      x[123] = bad;
      EXPECT_FALSE(std::isfinite(impl.sum_of_squares(x))) << impl.name;
      x[123] = limits::max();
    }
  }
}

TEST(NormArguments, WrongTypesAndNumbersOfSumsAreRefused) {
  const std::vector<double> doubles(3);
  const std::vector<float> floats(kSumChunk);
  Sums two(2, 7.0);
  for (const Impl& impl : kImpls) {
    EXPECT_THROW((void)impl.squares(doubles), Error) << impl.name;
    EXPECT_THROW((void)impl.abs(doubles), Error) << impl.name;
    EXPECT_THROW((void)impl.sum_of_squares(doubles), Error) << impl.name;
    EXPECT_THROW(impl.squares_of(floats, two), Error) << impl.name;
    EXPECT_THROW(impl.abs_of(floats, {}), Error) << impl.name;
    EXPECT_THROW(impl.abs_of(ConstView(), two), Error) << impl.name;
    EXPECT_EQ(two, (Sums{7, 7})) << impl.name;
  }
}

}  // namespace
}  // namespace thinwire::kernels::norm_test
