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

template <class T>
constexpr std::uint32_t kInfinityBits = (0x7fffu >> kFormat<T>.digits)
                                        << kFormat<T>.digits;

// Between two neighbours the half-way point decides: it goes to the even one,
// and every float next to it to the nearer one. As rounding is monotonic, that
// is all of it.
TYPED_TEST(SixteenBits, AreRoundedToNearestTiesToEvenBetweenAllNeighbours) {
  const auto bits_of = [](float value) {
    return round_to<TypeParam>(value).bits;
  };
  for (std::uint32_t low = 0; low < kInfinityBits<TypeParam>; ++low) {
    const std::uint32_t high = low + 1;
    const double below = to_float(from<TypeParam>(low));
    // Past the largest number the next would be a power of 2, for which
    // infinity stands.
    const double above = high == kInfinityBits<TypeParam>
                             ? std::ldexp(1.0, kFormat<TypeParam>.end)
                             : to_float(from<TypeParam>(high));
    const auto middle = static_cast<float>((below + above) / 2);  // exact
    const std::uint32_t even = low % 2 == 0 ? low : high;
    const float under = std::nextafter(middle, 0.0f);
    const float over = std::nextafter(middle, kInfinity);
    ASSERT_EQ(bits_of(middle), even) << middle;
    ASSERT_EQ(bits_of(under), low) << under;
    ASSERT_EQ(bits_of(over), high) << over;
    ASSERT_EQ(bits_of(-middle), even | 0x8000u) << -middle;
    ASSERT_EQ(bits_of(-under), low | 0x8000u) << -under;
    ASSERT_EQ(bits_of(-over), high | 0x8000u) << -over;
  }
}

// A stride that is prime visits all exponents, signs and last bits.
TYPED_TEST(SixteenBits, AreRoundedAsInDouble) {
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
  for (int place = 0; place < 23; ++place)
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const float nan = float_of(sign | 0x7f800000u | 1u << place);
      const TypeParam low = round_to<TypeParam>(nan);
      EXPECT_GT(low.bits & 0x7fffu, kInfinityBits<TypeParam>) << place;
      EXPECT_EQ(low.bits >> 15, sign >> 31) << place;
    }
}

}  // namespace
}  // namespace thinwire::dtype_test
