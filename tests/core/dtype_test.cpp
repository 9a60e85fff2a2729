// SPDX-License-Identifier: Apache-2.0
#include "thinwire/core/dtype.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace thinwire::dtype_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}
float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
Half half_of(std::uint32_t bits) { return {static_cast<std::uint16_t>(bits)}; }
BFloat16 bfloat16_of(std::uint32_t bits) {
  return {static_cast<std::uint16_t>(bits)};
}

// A binary format with exponents down to `lowest`, that of the smallest normal
// number, and `digits` bits after the point.
struct Format {
  int lowest;
  int digits;
  int end;  // 2^end is the first power that does not fit
};
constexpr Format kHalf = {-14, 10, 16};
constexpr Format kBFloat16 = {-126, 7, 128};

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
double meaning(std::uint32_t bits, const Format& format, int exponent_bits) {
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

TEST(DTypes, HaveTheSizesAndNamesThatPyTorchUses) {
  struct Case {
    DType dtype;
    std::size_t size;
    const char* name;
  };
  for (const Case& c :
       {Case{DType::kFloat32, 4, "float32"},
        Case{DType::kFloat16, 2, "float16"},
        Case{DType::kBFloat16, 2, "bfloat16"},
        Case{DType::kFloat64, 8, "float64"}, Case{DType::kInt32, 4, "int32"},
        Case{DType::kInt64, 8, "int64"}, Case{DType::kUInt8, 1, "uint8"}}) {
    EXPECT_EQ(size_of(c.dtype), c.size) << c.name;
    EXPECT_STREQ(to_string(c.dtype), c.name);
  }
}

template <class T>
void expect_size_of_type() {
  EXPECT_EQ(size_of(dtype_of<T>), sizeof(T)) << to_string(dtype_of<T>);
}

TEST(DTypes, HaveTheSizesOfTheirTypes) {
  expect_size_of_type<float>();
  expect_size_of_type<Half>();
  expect_size_of_type<BFloat16>();
  expect_size_of_type<double>();
  expect_size_of_type<std::int32_t>();
  expect_size_of_type<std::int64_t>();
  expect_size_of_type<std::uint8_t>();
  expect_size_of_type<std::byte>();
}

TEST(HalfToFloat, GivesEveryHalfItsMeaning) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const double want = meaning(bits, kHalf, 5);
    const float got = to_float(half_of(bits));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(got), want) << bits;
    }
    ASSERT_EQ(std::signbit(got), bits >> 15 != 0) << bits;
  }
}

TEST(HalfToFloat, IsUndoneByToHalf) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const bool nan = (bits & 0x7fffu) > 0x7c00u;
    // A signalling NaN becomes a quiet one; all its other bits stay.
    ASSERT_EQ(to_half(to_float(half_of(bits))).bits,
              nan ? bits | 0x200u : bits);
  }
}

TEST(BFloat16ToFloat, GivesEveryBFloat16ItsMeaning) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const double want = meaning(bits, kBFloat16, 8);
    const float got = to_float(bfloat16_of(bits));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(got), want) << bits;
    }
    ASSERT_EQ(bits_of(got) >> 31, bits >> 15) << bits;
  }
}

TEST(BFloat16ToFloat, IsUndoneByToBFloat16) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const bool nan = (bits & 0x7fffu) > 0x7f80u;
    ASSERT_EQ(to_bfloat16(to_float(bfloat16_of(bits))).bits,
              nan ? bits | 0x40u : bits);
  }
}

// Between two neighbours the half-way point decides: it goes to the even one,
// and every float next to it to the nearer one. With to_half() monotonic, that
// is all of its rounding.
TEST(ToHalf, RoundsToNearestTiesToEvenBetweenAllNeighbours) {
  for (std::uint32_t low = 0; low < 0x7c00; ++low) {
    const std::uint32_t high = low + 1;
    const float below = to_float(half_of(low));
    // Past 65504 the next would be 65536, for which infinity stands.
    const float above = high == 0x7c00 ? 65536.0f : to_float(half_of(high));
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
template <class Visit>
void visit_floats(Visit visit) {
  constexpr std::uint32_t kStride = 4999;
  for (std::uint64_t bits = 0; bits < std::uint64_t{1} << 32; bits += kStride)
    visit(float_of(static_cast<std::uint32_t>(bits)));
}

TEST(ToHalf, EqualsRoundingInDouble) {
  visit_floats([](float value) {
    const float got = to_float(to_half(value));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(got)) << bits_of(value);
    } else {
      ASSERT_EQ(static_cast<double>(got), rounded(value, kHalf)) << value;
    }
    ASSERT_EQ(std::signbit(got), std::signbit(value)) << value;
  });
}

TEST(ToBFloat16, EqualsRoundingInDouble) {
  visit_floats([](float value) {
    const float got = to_float(to_bfloat16(value));
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(got)) << bits_of(value);
    } else {
      ASSERT_EQ(static_cast<double>(got), rounded(value, kBFloat16)) << value;
    }
    ASSERT_EQ(std::signbit(got), std::signbit(value)) << value;
  });
}

// Every payload bit alone, whichever half of the float it lies in, quiet or
// signalling: infinity would be the mistake.
TEST(NaNs, StayNaNsWithTheirSign) {
  for (int place = 0; place < 23; ++place)
    for (const std::uint32_t sign : {0u, 0x80000000u}) {
      const float nan = float_of(sign | 0x7f800000u | 1u << place);
      const Half half = to_half(nan);
      EXPECT_GT(half.bits & 0x7fffu, 0x7c00u) << place;
      EXPECT_EQ(half.bits >> 15, sign >> 31) << place;
      const BFloat16 bfloat = to_bfloat16(nan);
      EXPECT_GT(bfloat.bits & 0x7fffu, 0x7f80u) << place;
      EXPECT_EQ(bfloat.bits >> 15, sign >> 31) << place;
    }
}

}  // namespace
}  // namespace thinwire::dtype_test
