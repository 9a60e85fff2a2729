// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/low_rank.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "support/kernel_cases.h"
#include "support/same_bits.h"
#include "support/values.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"

namespace thinwire::kernels::low_rank_test {
namespace {

using Floats = std::vector<float>;

/// Functions that make `count` values of a seed.
constexpr auto kValues = {test::normal, test::normal_and_special};

class LowRank : public test::KernelTest {
 protected:
  struct Shape {
    std::size_t rows;
    std::size_t columns;
    [[nodiscard]] std::size_t size() const { return rows * columns; }
  };
  // Long sums take most of the time, and other ranks add no other loops.
  const std::vector<std::size_t> ranks =
      size > 65 ? std::vector<std::size_t>{1, 7, 32}
                : std::vector<std::size_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32};
  // Few rows, then few columns. Both are no multiples of any group.
  const Shape shapes[2] = {{5, size}, {size, 3}};

  template <class T>
  void compare_rows(const Shape& shape, std::size_t rank, auto values) const {
    const std::size_t stride = shape.rows + 2;
    compare(
        low_rank_rows, ref::low_rank_rows,
        [&](auto run, auto x, auto residual, auto sum, auto q, auto p) {
          run({x, 0.3f, residual.data(), sum.data(), shape.rows, shape.columns},
              q.data(), rank, p.data(), stride);
        },
        test::rounded_to<T>(values(shape.size(), 1)), values(shape.size(), 2),
        Floats(shape.size()), values(shape.columns * rank, 3),
        Floats(stride * rank, 7.0f));
  }

  template <class T>
  void compare_product(const Shape& shape, std::size_t rank,
                       auto values) const {
    const std::size_t stride = shape.rows + 2;
    for (const bool has_m : {false, true})
      compare(
          low_rank_product, ref::low_rank_product,
          [&](auto run, auto p, auto q, auto m, auto out) {
            run(p.data(), stride, q.data(), rank, shape.rows, shape.columns,
                has_m ? m.data() : nullptr, 3e4f, out);
          },
          values(stride * rank, 4), values(shape.columns * rank, 5),
          values(shape.size(), 6), std::vector<T>(shape.size()));
  }

  void compare_columns(const Shape& shape, std::size_t rank,
                       auto values) const {
    const std::size_t columns = shape.columns;
    for (const auto& [begin, end] :
         {std::pair{std::size_t{0}, columns}, {columns / 3, columns / 2}})
      compare(
          low_rank_columns, ref::low_rank_columns,
          [&, first = begin, last = end](auto run, auto m, auto p, auto q) {
            run(m.data(), shape.rows, columns, p.data(), rank, first, last,
                q.data());
          },
          values(shape.size(), 7), values(shape.rows * rank, 8),
          Floats(columns * rank, 7.0f));
  }

  void compare_orthonormal(std::size_t rank, Floats p) const {
    compare(
        orthonormalize, ref::orthonormalize,
        [&](auto run, auto columns, auto zeroed) {
          const std::uint64_t mask = run(columns.data(), size, rank);
          zeroed[0] = static_cast<std::uint32_t>(mask);
          zeroed[1] = static_cast<std::uint32_t>(mask >> 32);
        },
        p, std::vector<std::uint32_t>(2, 7u));
  }
};

TEST_P(LowRank, RowsEqualReferenceBitForBit) {
  for (const Shape& shape : shapes)
    for (const auto values : kValues)
      for (const std::size_t rank : ranks)
        compare_rows<float>(shape, rank, values);
}

TEST_P(LowRank, ColumnsEqualReferenceBitForBit) {
  for (const Shape& shape : shapes)
    for (const auto values : kValues)
      for (const std::size_t rank : ranks) compare_columns(shape, rank, values);
}

TEST_P(LowRank, ProductEqualsReferenceBitForBit) {
  for (const Shape& shape : shapes)
    for (const auto values : kValues)
      for (const std::size_t rank : ranks)
        compare_product<float>(shape, rank, values);
}

TEST_P(LowRank, SixteenBitValuesEqualReferenceBitForBit) {
  for (const Shape& shape : shapes)
    for (const auto values : kValues) {
      compare_rows<Half>(shape, 5, values);
      compare_rows<BFloat16>(shape, 5, values);
      compare_product<Half>(shape, 5, values);
      compare_product<BFloat16>(shape, 5, values);
    }
}

TEST_P(LowRank, OrthonormalColumnsEqualReferenceBitForBit) {
  for (const std::size_t rank : ranks) {
    const Floats p = test::normal(size * rank, 9);
    compare_orthonormal(rank, p);
    compare_orthonormal(rank, test::normal_and_special(size * rank, 9));
    Floats dependent = p;  // Columns 1, 3, ... repeat the ones before them.
    for (std::size_t c = 1; c < rank; c += 2)
      std::copy_n(p.begin() + static_cast<std::ptrdiff_t>((c - 1) * size), size,
                  dependent.begin() + static_cast<std::ptrdiff_t>(c * size));
    compare_orthonormal(rank, dependent);
  }
}

INSTANTIATE_TEST_SUITE_P(All, LowRank,
                         test::kernel_cases_at({0, 1, 7, 31, 32, 33, 63, 64, 65,
                                                1000, 4097}),
                         test::case_name);

// ---- by hand; LowRank.* shows that all targets do the same

TEST(LowRankValues, AverageByHand) {
  // M = {{1, 2}, {3, 4}, {5, 6}} = values / 2 + residual
  const Floats values = {2, 2, 4, 8, 8, 8};
  const Floats residual = {0, 1, 1, 0, 1, 2};
  const Floats q = {1, 1, 1, -1};  // {1, 1} and {1, -1}
  Floats m(6), p(8, 7.0f);
  ref::low_rank_rows({values, 0.5f, residual.data(), m.data(), 3, 2}, q.data(),
                     2, p.data(), 4);
  EXPECT_EQ(m, (Floats{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(p, (Floats{3, 7, 11, 7, -1, -1, -1, 7}));

  const Floats basis = {1, 0, 0, 0, 1, -1};  // {1, 0, 0} and {0, 1, -1}
  Floats factor(4, 7.0f);
  ref::low_rank_columns(m.data(), 3, 2, basis.data(), 2, 0, 2, factor.data());
  EXPECT_EQ(factor, (Floats{1, 2, -2, -2}));
  ref::low_rank_columns(m.data(), 3, 2, basis.data(), 1, 1, 1, factor.data());
  EXPECT_EQ(factor, (Floats{1, 2, -2, -2}));

  Floats out(6);
  ref::low_rank_product(basis.data(), 3, factor.data(), 2, 3, 2, m.data(), 2,
                        out);
  EXPECT_EQ(out, (Floats{2, 4, -4, -4, 4, 4}));
  EXPECT_EQ(m, (Floats{0, 0, 5, 6, 3, 4}));
}

TEST(LowRankValues, MIsRoundedTwice) {
  // (1 + 2^-23)^2 is 1 + 2^-22 + 2^-46, of which the product keeps 1 + 2^-22.
  const float one_up = 1 + 0x1p-23f;
  const float minus = -(1 + 0x1p-22f);
  float m = 7, p = 7;
  ref::low_rank_rows(
      {ConstView(&one_up, 1, DType::kFloat32), one_up, &minus, &m, 1, 1},
      &one_up, 1, &p, 1);
  EXPECT_EQ(m, 0);
  EXPECT_EQ(p, 0);
}

// 2^24 absorbs a 1 that is added to it, but not a 2: the result tells which
// numbers met first.
TEST(LowRankValues, ProductsOfARowAreAddedInTheDefinedOrder) {
  const auto sum = [](std::size_t first, std::size_t second) {
    const Floats ones(48, 1.0f), zeros(48, 0.0f);
    Floats x = zeros, m = zeros;
    x[0] = 0x1p24f;
    x[first] = 1;
    x[second] = 1;
    float p = 0;
    ref::low_rank_rows({x, 1, zeros.data(), m.data(), 1, 48}, ones.data(), 1,
                       &p, 1);
    return p;
  };
  EXPECT_EQ(sum(16, 32), 0x1p24f);     // both to 0
  EXPECT_EQ(sum(1, 17), 0x1p24f + 2);  // both to 1
  EXPECT_EQ(sum(1, 9), 0x1p24f + 2);   // 1 + 9 first
  EXPECT_EQ(sum(8, 4), 0x1p24f);       // 0 + 8, then 0 + 4
  EXPECT_EQ(sum(2, 6), 0x1p24f + 2);   // 2 + 6 first
  EXPECT_EQ(sum(1, 3), 0x1p24f + 2);   // 1 + 3 first
}

TEST(LowRankValues, ProductsOfAColumnAreAddedInTheOrderOfRows) {
  const auto sum = [](std::size_t large) {
    Floats m(33, 1.0f), ones(33, 1.0f);
    m[large] = 0x1p24f;
    float q = 7;
    ref::low_rank_columns(m.data(), 33, 1, ones.data(), 1, 0, 1, &q);
    return q;
  };
  EXPECT_EQ(sum(0), 0x1p24f);
  EXPECT_EQ(sum(20), 0x1p24f + 20);
  EXPECT_EQ(sum(32), 0x1p24f + 32);
}

TEST(LowRankValues, SumsOverRowsStayWithinTheirBound) {
  constexpr std::size_t kRows = 5000;
  const Floats m = test::normal(kRows, 1), p = test::normal(kRows, 2);
  double exact = 0, magnitudes = 0;
  for (std::size_t i = 0; i < kRows; ++i) {
    const double product = double{m[i]} * double{p[i]};
    exact += product;
    magnitudes += std::abs(product);
  }
  float q = 0;
  ref::low_rank_columns(m.data(), kRows, 1, p.data(), 1, 0, 1, &q);
  EXPECT_LE(std::abs(double{q} - exact), kRows * 0x1p-24 * magnitudes);
}

TEST(LowRankValues, AnElementsBitsDoNotDependOnTheRange) {
  constexpr std::size_t kRows = 45, kColumns = 77, kRank = 7;
  const Floats values = test::normal(kRows * kColumns, 1),
               residual = test::normal(kRows * kColumns, 2),
               q = test::normal(kColumns * kRank, 3);
  const ConstView view = values;
  const std::pair<std::size_t, std::size_t> row_ranges[] = {
      {0, 1}, {1, 6}, {7, 0}, {7, 17}, {24, 21}};
  const std::pair<std::size_t, std::size_t> column_ranges[] = {
      {0, 1}, {1, 18}, {18, 18}, {18, 53}, {53, 77}};

  Floats m(values.size()), p(kRows * kRank), p_parts = p, m_parts = m;
  low_rank_rows({view, 2, residual.data(), m.data(), kRows, kColumns}, q.data(),
                kRank, p.data(), kRows);
  for (const auto& [first, rows] : row_ranges)
    low_rank_rows({view.subview(first * kColumns, rows * kColumns), 2,
                   residual.data() + first * kColumns,
                   m_parts.data() + first * kColumns, rows, kColumns},
                  q.data(), kRank, p_parts.data() + first, kRows);
  EXPECT_EQ(m_parts, m);
  EXPECT_EQ(p_parts, p);

  Floats whole(q.size()), parts(q.size());
  low_rank_columns(m.data(), kRows, kColumns, p.data(), kRank, 0, kColumns,
                   whole.data());
  for (const auto& [begin, end] : column_ranges)
    low_rank_columns(m.data(), kRows, kColumns, p.data(), kRank, begin, end,
                     parts.data());
  EXPECT_EQ(parts, whole);

  Floats out(m.size()), out_parts(m.size());
  low_rank_product(p.data(), kRows, whole.data(), kRank, kRows, kColumns,
                   m.data(), 2, out);
  for (const auto& [first, rows] : row_ranges)
    low_rank_product(
        p.data() + first, kRows, whole.data(), kRank, rows, kColumns,
        m_parts.data() + first * kColumns, 2,
        View(out_parts).subview(first * kColumns, rows * kColumns));
  EXPECT_EQ(out_parts, out);
  EXPECT_EQ(m_parts, m);
}

TEST(LowRankValues, FiniteValuesBeyondTheRangeBecomeTheLargest) {
  using limits = std::numeric_limits<float>;
  const Floats q = {65504, 65520, -7e4f, 3.4e38f, -3.4e38f, limits::infinity()};
  const auto product = [&]<class T>(std::vector<T> out, float scale) {
    const float one = 1;
    ref::low_rank_product(&one, 1, q.data(), 1, 1, q.size(), nullptr, scale,
                          out);
    Floats result;
    for (const T value : out) {
      if constexpr (std::is_same_v<T, float>)
        result.push_back(value);
      else
        result.push_back(to_float(value));
    }
    return result;
  };
  EXPECT_EQ(product(std::vector<Half>(6), 1),
            (Floats{65504, 65504, -65504, 65504, -65504, limits::infinity()}));
  const float most = 0x1.FEp127f;
  EXPECT_EQ(product(std::vector<BFloat16>(6), 1),
            (Floats{65536, 65536, -70144, most, -most, limits::infinity()}));
  // Also if the scale makes them so.
  EXPECT_EQ(product(std::vector<float>(6), -2),
            (Floats{-131008, -131040, 14e4f, -limits::max(), limits::max(),
                    -limits::infinity()}));
}

// Their stores take another way, past the caches.
TEST(LowRankValues, AlignedRowsOfAProductEqualTheReference) {
  constexpr std::size_t kRows = 13, kColumns = 96, kRank = 5;
  const Floats p = test::normal(kRows * kRank, 1);
  const Floats q = test::normal(kColumns * kRank, 2);
  Floats m = test::normal(kRows * kColumns, 3);
  Floats expected_m = m;
  Floats expected(m.size());
  Buffer values(m.size(), DType::kFloat32);
  ASSERT_EQ(reinterpret_cast<std::uintptr_t>(values.as<float>().data()) % 64,
            0u);
  low_rank_product(p.data(), kRows, q.data(), kRank, kRows, kColumns, m.data(),
                   3, values.view());
  ref::low_rank_product(p.data(), kRows, q.data(), kRank, kRows, kColumns,
                        expected_m.data(), 3, View(expected));
  const auto own = values.as<float>();
  EXPECT_EQ(Floats(own.begin(), own.end()), expected);
  EXPECT_EQ(m, expected_m);
}

double dot(const float* a, const float* b, std::size_t size) {
  double sum = 0;
  for (std::size_t i = 0; i < size; ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}

TEST(LowRankValues, ColumnsBecomeOrthonormalAndSpanTheSame) {
  constexpr std::size_t kRows = 300, kRank = 6;
  const Floats before = test::normal(kRows * kRank, 1);
  Floats p = before;
  EXPECT_EQ(ref::orthonormalize(p.data(), kRows, kRank), 0u);
  for (std::size_t a = 0; a < kRank; ++a)
    for (std::size_t b = 0; b < kRank; ++b)
      // Each factor of a product is rounded to 2^-24 of itself; the sums of
      // magnitudes are at most 1.
      EXPECT_NEAR(dot(p.data() + a * kRows, p.data() + b * kRows, kRows),
                  a == b ? 1 : 0, 3 * 0x1p-24);
  for (std::size_t c = 0; c < kRank; ++c) {
    // Column c is a combination of the results up to c.
    const float* const column = before.data() + c * kRows;
    double rest = dot(column, column, kRows);
    for (std::size_t k = 0; k <= c; ++k) {
      const double along = dot(column, p.data() + k * kRows, kRows);
      rest -= along * along;
    }
    EXPECT_NEAR(rest / dot(column, column, kRows), 0, 1e-6);
  }
}

TEST(LowRankValues, ColumnsThatLeaveOnlyRoundingBecomeZero) {
  constexpr std::size_t kRows = 40;
  const Floats a = test::normal(kRows, 1), b = test::normal(kRows, 2);
  Floats p;
  const auto add = [&p](auto element) {
    for (std::size_t i = 0; i < kRows; ++i) p.push_back(element(i));
  };
  add([&](std::size_t i) { return a[i]; });
  add([&](std::size_t) { return 0.0f; });
  add([&](std::size_t i) { return -4 * a[i]; });
  add([&](std::size_t i) { return b[i]; });
  // Differs from b in one element, by 2^-20 of it: more than rounding.
  add([&](std::size_t i) { return i == 3 ? b[i] * (1 + 0x1p-20f) : b[i]; });
  add([&](std::size_t i) { return b[i] * 0x1p100f; });
  EXPECT_EQ(ref::orthonormalize(p.data(), kRows, 6), 0b100110u);
  for (const std::size_t c : {1u, 2u, 5u})
    for (std::size_t i = 0; i < kRows; ++i) EXPECT_EQ(p[c * kRows + i], 0);
  const float* const kept = p.data() + 4 * kRows;
  EXPECT_NEAR(dot(kept, kept, kRows), 1, 0x1p-22);
  EXPECT_NEAR(dot(kept, p.data() + 3 * kRows, kRows), 0, 0x1p-22);
}

TEST(LowRankValues, MoreColumnsThanRowsLeaveZeros) {
  Floats p = test::normal(3 * 64, 1);
  const std::uint64_t zeroed = ref::orthonormalize(p.data(), 3, 64);
  EXPECT_EQ(zeroed, ~std::uint64_t{0b111});
  EXPECT_EQ(ref::orthonormalize(p.data(), 0, 2), 0b11u);
}

TEST(LowRankValues, ColumnsAfterOneThatIsNotFiniteAreNotFinite) {
  for (const float bad : {NAN, INFINITY}) {
    Floats p = test::normal(3 * 20, 1);
    p[20 + 5] = bad;
    EXPECT_EQ(ref::orthonormalize(p.data(), 20, 3), 0u);
    EXPECT_NEAR(dot(p.data(), p.data(), 20), 1, 0x1p-22);
    EXPECT_TRUE(std::isnan(p[20 + 5]));
    EXPECT_TRUE(std::isnan(p[40]));
  }
}

TEST(LowRankArguments, WrongRanksSizesAndTypesAreRefusedBeforeAnythingChanges) {
  const Floats ones(12, 1.0f);
  const std::vector<double> doubles(6, 1.0);
  Floats m = ones, p = ones, out = ones;
  const View values = View(out).subview(0, 6);
  for (const auto run : {low_rank_rows, ref::low_rank_rows}) {
    const auto refused = [&](ConstView x, std::size_t rank,
                             std::size_t stride) {
      EXPECT_THROW(run({x, 1, ones.data(), m.data(), 3, 2}, ones.data(), rank,
                       p.data(), stride),
                   Error);
    };
    refused(values, 0, 3);
    refused(values, kMostLowRank + 1, 3);
    refused(values, 1, 2);
    refused(out, 1, 3);
    refused(doubles, 1, 3);
  }
  for (const auto run : {low_rank_columns, ref::low_rank_columns}) {
    const auto refused = [&](std::size_t rank, std::size_t begin,
                             std::size_t end) {
      EXPECT_THROW(
          run(ones.data(), 3, 2, ones.data(), rank, begin, end, p.data()),
          Error);
    };
    refused(0, 0, 2);
    refused(kMostLowRank + 1, 0, 2);
    refused(1, 0, 3);
    refused(1, 2, 1);
  }
  for (const auto run : {low_rank_product, ref::low_rank_product}) {
    std::vector<double> to = doubles;
    const auto refused = [&](View x, std::size_t rank, std::size_t stride) {
      EXPECT_THROW(
          run(ones.data(), stride, ones.data(), rank, 3, 2, m.data(), 1, x),
          Error);
    };
    refused(values, 0, 3);
    refused(values, kMostLowRank + 1, 3);
    refused(values, 1, 2);
    refused(out, 1, 3);
    refused(to, 1, 3);
    EXPECT_EQ(to, doubles);
  }
  for (const auto run : {orthonormalize, ref::orthonormalize})
    for (const std::size_t rank : {std::size_t{0}, kMostLowRank + 1})
      EXPECT_THROW((void)run(p.data(), 1, rank), Error);
  for (const Floats& array : {m, p, out}) EXPECT_EQ(array, ones);
}

}  // namespace
}  // namespace thinwire::kernels::low_rank_test
