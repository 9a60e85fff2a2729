// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace thinwire::dtype_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }

// A binary format with exponents down to `lowest`, that of the smallest normal
// number, and `digits` bits after the point.
struct Format {
  int lowest;
  int digits;
  int end;  // 2^end is the first power that does not fit
};

template <class T>
constexpr Format kFormat = {-14, 10, 16};
template <>
constexpr Format kFormat<BFloat16> = {-126, 7, 128};

template <class T>
T from(std::uint32_t bits) {
  return {static_cast<std::uint16_t>(bits)};
}

template <class T>
T round_to(float value) {
  if constexpr (std::is_same_v<T, Half>)
    return to_half(value);
  else
    return to_bfloat16(value);
}

// `value` rounded to the format in double, where the quotient is exact and
// nearbyint rounds it to nearest, ties to even.
double rounded(double value, const Format& format) {
  if (value == 0 || std::isinf(value)) return value;
  const int exponent = std::max(std::ilogb(value), format.lowest);
  const double unit = std::ldexp(1.0, exponent - format.digits);
  const double result = std::nearbyint(value / unit) * unit;
  return std::abs(result) >= std::ldexp(1.0, format.end)
             ? std::copysign(std::numeric_limits<double>::infinity(), value)
             : result;
}

// What the bits mean, by IEEE 754's definition.
double meaning(std::uint32_t bits, const Format& format) {
  const int exponent_bits = 15 - format.digits;
  const std::uint32_t mantissa = bits & ((1u << format.digits) - 1);
  const std::uint32_t exponent =
      bits >> format.digits & ((1u << exponent_bits) - 1);
  const double sign = (bits >> 15) != 0 ? -1 : 1;
  if (exponent == (1u << exponent_bits) - 1)
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  const int scale = format.lowest - format.digits;
  if (exponent == 0) return sign * std::ldexp(mantissa, scale);
  return sign * std::ldexp(mantissa + (1u << format.digits),
                           scale + static_cast<int>(exponent) - 1);
}

template <class T>
void expect_dtype(DType dtype, const char* name) {
  EXPECT_EQ(dtype_of<T>, dtype) << name;
  EXPECT_EQ(size_of(dtype), sizeof(T)) << name;
  EXPECT_STREQ(to_string(dtype), name);
}

TEST(DTypes, HaveTheSizesOfTheirTypesAndTheNamesThatPyTorchUses) {
  expect_dtype<float>(DType::kFloat32, "float32");
  expect_dtype<Half>(DType::kFloat16, "float16");
  expect_dtype<BFloat16>(DType::kBFloat16, "bfloat16");
  expect_dtype<double>(DType::kFloat64, "float64");
  expect_dtype<std::int32_t>(DType::kInt32, "int32");
  expect_dtype<std::int64_t>(DType::kInt64, "int64");
  expect_dtype<std::uint8_t>(DType::kUInt8, "uint8");
  expect_dtype<std::byte>(DType::kUInt8, "uint8");
}

template <class T>
class SixteenBits : public ::testing::Test {};
using SixteenBitTypes = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(SixteenBits, SixteenBitTypes);

TYPED_TEST(SixteenBits, HaveTheirMeaningAsFloatsAndComeBack) {
  const Format& format = kFormat<TypeParam>;
  // A signalling NaN becomes a quiet one; all its other bits stay.
  const std::uint32_t quiet = 1u << (format.digits - 1);
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const double want = meaning(bits, format);
    const float got = to_float(from<TypeParam>(bits));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(got), want) << bits;
    }
    ASSERT_EQ(std::signbit(got), bits >> 15 != 0) << bits;
    ASSERT_EQ(round_to<TypeParam>(got).bits,
              std::isnan(want) ? bits | quiet : bits);
  }
}

// Between two neighbours the half-way point decides: it goes to the even one,
// and every float next to it to the nearer one. With to_half() monotonic, that
// is all of its rounding.
TEST(ToHalf, RoundsToNearestTiesToEvenBetweenAllNeighbours) {
  for (std::uint32_t low = 0; low < 0x7c00; ++low) {
    const std::uint32_t high = low + 1;
    const float below = to_float(from<Half>(low));
    // Past 65504 the next would be 65536, for which infinity stands.
    const float above = high == 0x7c00 ? 65536.0f : to_float(from<Half>(high));
    const float middle = (below + above) / 2;  // one more bit: exact
    const std::uint32_t even = low % 2 == 0 ? low : high;
    const float under = std::nextafter(middle, 0.0f);
    const float over = std::nextafter(middle, kInfinity);
    ASSERT_EQ(to_half(middle).bits, even) << middle;
    ASSERT_EQ(to_half(under).bits, low) << under;
    ASSERT_EQ(to_half(over).bits, high) << over;
    ASSERT_EQ(to_half(-middle).bits, even | 0x8000u) << -middle;
    ASSERT_EQ(to_half(-under).bits, low | 0x8000u) << -under;
    ASSERT_EQ(to_half(-over).bits, high | 0x8000u) << -over;
  }
}

TEST(ToBFloat16, RoundsToNearestTiesToEvenBetweenAllNeighbours) {
  for (std::uint32_t low = 0; low < 0x7f80; ++low) {
    const std::uint32_t high = low + 1;
    const std::uint32_t middle = (low << 16) + 0x8000u;
    const std::uint32_t even = low % 2 == 0 ? low : high;
    for (const std::uint32_t sign : {0u, 0x8000u}) {
      const std::uint32_t upper = sign << 16;
      ASSERT_EQ(to_bfloat16(float_of(upper | middle)).bits, sign | even);
      ASSERT_EQ(to_bfloat16(float_of(upper | (middle - 1))).bits, sign | low);
      ASSERT_EQ(to_bfloat16(float_of(upper | (middle + 1))).bits, sign | high);
    }
  }
}

// A stride that is prime visits all exponents, signs and last bits.
TYPED_TEST(SixteenBits, AreRoundedToAsInDouble) {
  constexpr std::uint32_t kStride = 4999;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += kStride) {
    const float value = float_of(static_cast<std::uint32_t>(bits));
    const float got = to_float(round_to<TypeParam>(value));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(got), rounded(value, kFormat<TypeParam>))
          << value;
    }
    ASSERT_EQ(std::signbit(got), std::signbit(value)) << value;
  }
}

// Every payload bit alone, whichever half of the float it lies in, quiet or
// signalling: infinity would be the mistake.
TYPED_TEST(SixteenBits, KeepNaNsWithTheirSign) {
  const std::uint32_t infinity = (0x7fffu >> kFormat<TypeParam>.digits)
                                 << kFormat<TypeParam>.digits;
  for (int place = 0; place < 23; ++place)
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const float nan = float_of(sign | 0x7f800000u | 1u << place);
      const TypeParam low = round_to<TypeParam>(nan);
      EXPECT_GT(low.bits & 0x7fffu, infinity) << place;
      EXPECT_EQ(low.bits >> 15, sign >> 31) << place;
    }
}

}  // namespace
}  // namespace thinwire::dtype_test
