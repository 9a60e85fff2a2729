// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "support/errors.h"
#include "support/kernel_cases.h"
#include "support/values.h"

namespace thinwire::kernels::cast_test {
namespace {

class Casts : public test::KernelTest {
 protected:
  template <class A, class B>
  void compare_pair() {
    const auto of = [this]<class T>(T /*type*/, std::uint32_t seed) {
      return test::rounded_to<T>(test::normal_and_special(size, seed));
    };
    compare(
        convert, ref::convert,
        [](auto run, auto from, auto to) { run(from, to); }, of(A{}, 1),
        std::vector<B>(size));
    compare(
        accumulate, ref::accumulate,
        [](auto run, auto sum, auto a, auto b, auto c) {
          for (const auto& values : {a, b, c}) run(sum, values);
        },
        of(A{}, 2), of(B{}, 3), of(B{}, 4), of(B{}, 5));
  }

  template <class T>
  void compare_with_each() {
    compare_pair<T, float>();
    compare_pair<T, Half>();
    compare_pair<T, BFloat16>();
  }
};

TEST_P(Casts, EqualReferenceBitForBit) {
  compare_with_each<float>();
  compare_with_each<Half>();
  compare_with_each<BFloat16>();
}

INSTANTIATE_TEST_SUITE_P(All, Casts, test::kernel_cases(), test::case_name);

// Whatever is cut where: as element by element.
TEST(JoinedCasts, ConvertPartByPart) {
  const std::vector<float> values = test::normal(9, 1);
  for (const std::size_t cut : {0u, 4u, 7u, 9u}) {
    std::vector<BFloat16> first(cut);
    std::vector<float> second(9 - cut);
    const View to = View::joined(first, second);
    convert(values, to);
    for (std::size_t i = 0; i < 9; ++i) {
      const float want = i < cut ? to_float(to_bfloat16(values[i])) : values[i];
      std::vector<float> back(9);
      convert(to, back);
      EXPECT_EQ(back[i], want) << i;
      std::vector<Half> narrow(5);
      std::vector<float> wide(4);
      convert(to, View::joined(narrow, wide));
      EXPECT_EQ(i < 5 ? to_float(narrow[i]) : wide[i - 5],
                i < 5 ? to_float(to_half(want)) : want);
      accumulate(back, to);
      EXPECT_EQ(back[i], 2 * want);
    }
  }
}

// ---- without the reference: against core's conversions, which are tested by
// arithmetic in double

/// Every example is held against `ref`, and against the kernels for every
/// target of this machine.
class CastValues : public ::testing::TestWithParam<std::string> {
 protected:
  const bool is_ref = GetParam() == "ref";
  decltype(&convert) run_convert = is_ref ? ref::convert : convert;
  decltype(&accumulate) run_accumulate = is_ref ? ref::accumulate : accumulate;

  template <class T, class F>
  std::vector<T> converted(const std::vector<F>& from) {
    std::vector<T> to(from.size());
    run_convert(from, to);
    return to;
  }

  template <class S, class T>
  S sum_of(S sum, T value) {
    std::vector<S> sums(33, sum);
    const std::vector<T> values(33, value);
    run_accumulate(sums, values);
    EXPECT_EQ(bits_of(sums.front()), bits_of(sums.back()));
    return sums.front();
  }

  static std::uint32_t bits_of(float x) {
    return std::bit_cast<std::uint32_t>(x);
  }
  static std::uint32_t bits_of(Half x) { return x.bits; }
  static std::uint32_t bits_of(BFloat16 x) { return x.bits; }

 private:
  test::ForcedTarget forced_{is_ref ? "" : GetParam()};
};

template <class T>
std::vector<T> all_patterns() {
  std::vector<T> values(65536);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    values[bits].bits = static_cast<std::uint16_t>(bits);
  }
  return values;
}

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

/// Both signs of: every float whose lower 16 bits are 0, and its neighbours;
/// every tie of fp16 and of bf16, and its neighbours; with those, NaNs of every
/// upper payload, infinities, zeros, subnormals and the ends of the ranges.
std::vector<float> edges() {
  std::vector<std::uint32_t> places;
  for (std::uint32_t upper = 0; upper <= 0x7fff; ++upper) {
    places.push_back(upper << 16);            // bf16's own values
    places.push_back(upper << 16 | 0x8000u);  // its ties
  }
  for (std::uint32_t half = 0; half < 0x7c00; ++half) {
    const float low = to_float(Half{static_cast<std::uint16_t>(half)});
    const float high =
        half == 0x7bff ? 65536.0f
                       : to_float(Half{static_cast<std::uint16_t>(half + 1)});
    places.push_back(std::bit_cast<std::uint32_t>(low));
    places.push_back(std::bit_cast<std::uint32_t>((low + high) / 2));
  }
  std::vector<float> values = {65504.0f, 65519.99f, 65520.0f, -65520.0f};
  for (const std::uint32_t place : places) {
    for (const std::uint32_t bits : {place - 1, place, place + 1}) {
      values.push_back(float_of(bits & 0x7fff'ffffu));
      values.push_back(float_of(bits | 0x8000'0000u));
    }
  }
  return values;
}

TEST_P(CastValues, Every16BitPatternIsWidenedAsByCoreAndRestored) {
  const auto halves = all_patterns<Half>();
  const auto bfloats = all_patterns<BFloat16>();
  const auto from_half = converted<float>(halves);
  const auto from_bfloat = converted<float>(bfloats);
  const auto half_again = converted<Half>(from_half);
  const auto bfloat_again = converted<BFloat16>(from_bfloat);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    ASSERT_EQ(bits_of(from_half[i]), bits_of(to_float(halves[i]))) << i;
    ASSERT_EQ(bits_of(from_bfloat[i]), bits_of(to_float(bfloats[i]))) << i;
    // A signalling NaN becomes a quiet one.
    const bool half_nan = (i & 0x7fffu) > 0x7c00u;
    const bool bfloat_nan = (i & 0x7fffu) > 0x7f80u;
    ASSERT_EQ(half_again[i].bits, half_nan ? i | 0x200u : i);
    ASSERT_EQ(bfloat_again[i].bits, bfloat_nan ? i | 0x40u : i);
  }
}

TEST_P(CastValues, FloatsAreRoundedAsByCore) {
  const std::vector<float> floats = edges();
  const auto halves = converted<Half>(floats);
  const auto bfloats = converted<BFloat16>(floats);
  for (std::size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(halves[i].bits, to_half(floats[i]).bits) << floats[i];
    ASSERT_EQ(bfloats[i].bits, to_bfloat16(floats[i]).bits) << floats[i];
  }
}

TEST_P(CastValues, Between16BitTypesThereIsOneRounding) {
  const auto halves = all_patterns<Half>();
  const auto bfloats = all_patterns<BFloat16>();
  const auto to_bfloats = converted<BFloat16>(halves);
  const auto to_halves = converted<Half>(bfloats);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    ASSERT_EQ(to_bfloats[i].bits, to_bfloat16(to_float(halves[i])).bits) << i;
    ASSERT_EQ(to_halves[i].bits, to_half(to_float(bfloats[i])).bits) << i;
  }
}

TEST_P(CastValues, TheSameTypeIsACopyOfAllBitsAlsoInPlace) {
  auto halves = all_patterns<Half>();
  const auto copy = converted<Half>(halves);
  run_convert(halves, halves);
  for (std::uint32_t i = 0; i < 65536; ++i) {
    ASSERT_EQ(copy[i].bits, i);
    ASSERT_EQ(halves[i].bits, i);
  }
  std::vector<float> signalling = {float_of(0x7f80'0001u)};
  EXPECT_EQ(bits_of(converted<float>(signalling)[0]), 0x7f80'0001u);
}

TEST_P(CastValues, SumsAreComputedInFloatAndRoundedOnce) {
  const Half one{0x3c00};
  const Half half_ulp{0x1000};                    // 2^-11
  EXPECT_EQ(sum_of(one, half_ulp).bits, 0x3c00);  // a tie, to even
  EXPECT_EQ(sum_of(Half{0x3c01}, half_ulp).bits, 0x3c02);
  EXPECT_EQ(sum_of(one, 0x1.01p-11f).bits, 0x3c01);  // not rounded before
  EXPECT_EQ(sum_of(Half{0x7bff}, 15.99f).bits, 0x7bff);
  EXPECT_EQ(sum_of(Half{0x7bff}, Half{0x4c00}).bits, 0x7c00);  // 65504 + 16
  EXPECT_EQ(sum_of(Half{1}, Half{1}).bits, 2);                 // subnormals
  EXPECT_EQ(sum_of(BFloat16{0x3f80}, 0x1p-8f).bits, 0x3f80);   // a tie, to even
  EXPECT_EQ(sum_of(BFloat16{0x3f80}, Half{0x1c01}).bits, 0x3f81);
  EXPECT_EQ(sum_of(1.0f, Half{1}), 1 + 0x1p-24f);  // a tie in float
  EXPECT_EQ(sum_of(1.5f, BFloat16{0x4020}), 4.0f);
  EXPECT_EQ(bits_of(sum_of(-0.0f, Half{0x8000})), 0x8000'0000u);
  EXPECT_EQ(sum_of(Half{0x8000}, Half{0x0000}).bits, 0);
  EXPECT_TRUE(std::isnan(to_float(sum_of(Half{0x7c00}, Half{0xfc00}))));
  EXPECT_TRUE(std::isnan(sum_of(0.0f, BFloat16{0x7f81})));
}

TEST_P(CastValues, WrongTypesAndSizesAreRefusedBeforeAnythingChanges) {
  const std::vector<double> doubles(2, 1.0);
  const std::vector<float> three(3, 1.0f);
  std::vector<float> two(2, 5.0f);
  std::vector<std::int32_t> integers(2, 5);
  test::expect_invalid({"from: dtype", "float64"},
                       [&] { run_convert(doubles, two); });
  test::expect_invalid({"to: dtype", "int32"},
                       [&] { run_convert(two, integers); });
  test::expect_invalid({"to: must have 3 elements, got 2"},
                       [&] { run_convert(three, two); });
  test::expect_invalid({"sum: dtype", "int32"},
                       [&] { run_accumulate(integers, two); });
  test::expect_invalid({"values: dtype", "float64"},
                       [&] { run_accumulate(two, doubles); });
  test::expect_invalid({"values: must have 2 elements, got 3"},
                       [&] { run_accumulate(two, three); });
  EXPECT_EQ(two, std::vector<float>(2, 5.0f));
  EXPECT_EQ(integers, std::vector<std::int32_t>(2, 5));
}

INSTANTIATE_TEST_SUITE_P(Ref, CastValues, ::testing::Values("ref"));
INSTANTIATE_TEST_SUITE_P(All, CastValues,
                         ::testing::ValuesIn(kernels::cpu_targets()));

}  // namespace
}  // namespace thinwire::kernels::cast_test
