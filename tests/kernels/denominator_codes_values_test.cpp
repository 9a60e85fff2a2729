// SPDX-License-Identifier: Apache-2.0
// What codes stand for, against the C++ library's functions and by hand.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "thinwire/kernels/denominator_codes.h"

namespace thinwire::kernels::denominator_codes_values_test {
namespace {

TEST(DenominatorCodesValues, TheLogarithmIsExactToItsLastPlaces) {
  for (std::uint32_t bits = 1; bits < 0x7f80'0000u; bits += 100'003) {
    const auto x = std::bit_cast<float>(bits);
    const double want = std::log2(double{x});
    EXPECT_NEAR(log2(x), want, 4e-15 * std::max(1.0, std::abs(want))) << x;
  }
  EXPECT_EQ(log2(1.0f), 0.0);
  EXPECT_EQ(log2(0x1p-149f), -149.0);
  EXPECT_EQ(log2(0x1p127f), 127.0);
  EXPECT_EQ(log2(0.0f), -1023.0);
}

TEST(DenominatorCodesValues, ThePowerIsExactToTheLastPlaceButOne) {
  for (int i = -125'000; i <= 125'000; ++i) {
    const float y = static_cast<float>(i) * 1e-3f;
    const double want = std::exp2(-double{y});
    EXPECT_NEAR(inverse_power_of_2(y) / want, 1, 2e-7) << y;
  }
  EXPECT_EQ(inverse_power_of_2(0), 1.0f);
  EXPECT_EQ(inverse_power_of_2(20), 0x1p-20f);
  EXPECT_TRUE(std::isfinite(inverse_power_of_2(126.4f)));
}

// Largest relative error of the inverse over denominators that cover so many
// octaves.
double worst_error(double octaves, int bits) {
  const std::size_t size = 1024;
  double worst = 0;
  for (const double begin : {-27.0, -13.3, 0.1}) {
    std::vector<float> d(size);
    for (std::size_t i = 0; i < size; ++i)
      d[i] = static_cast<float>(
          std::exp2(begin + octaves * static_cast<double>(i) / (size - 1.0)));
    std::vector<std::uint8_t> codes(code_bytes(size, bits));
    const CodeRange range =
        encode_denominators(d.data(), nullptr, size, bits, codes.data());
    const InverseTables tables = inverse_tables(range);
    for (std::size_t i = 0; i < size; ++i) {
      const int k = code_at(codes.data(), i, bits) - 1;
      EXPECT_GE(k, 0);
      EXPECT_LE(k, most_code_steps(bits));
      worst = std::max(worst, std::abs(double{tables.inverse(k)} * d[i] - 1));
    }
  }
  return worst;
}

TEST(DenominatorCodesValues, TheInverseIsOffByHalfAStepAtMost) {
  // Half a step of 5.8 octaves: 2^(5.8 / 254 / 2) - 1, and of 14 steps.
  EXPECT_LE(worst_error(5.8, 8), 0.008);
  EXPECT_LE(worst_error(5.8, 4), std::exp2(5.8 / 28) - 1 + 1e-6);
  EXPECT_GE(worst_error(5.8, 4), 0.1);
  EXPECT_LE(worst_error(0, 8), 1e-5);
}

TEST(DenominatorCodesValues, AreTheNearestOfTheCell) {
  // log2: 0, 1, 2, 14; so the step is 1 with 4 bits.
  const std::vector<float> d = {1, 2, 4, 16384, 5, 5.7f};
  std::vector<std::uint8_t> codes(code_bytes(d.size(), 4));
  const std::uint32_t active = 0b110111;  // all but 16384's neighbour
  const CodeRange range =
      encode_denominators(d.data(), nullptr, d.size(), 4, codes.data());
  EXPECT_EQ(range, (CodeRange{0, 1}));
  EXPECT_EQ(codes, (std::vector<std::uint8_t>{1, 2, 3, 15, 3, 4}));
  EXPECT_EQ(code_of(0.01f, range, 4), 1);
  EXPECT_EQ(code_of(1e30f, range, 4), 15);

  const CodeRange masked =
      encode_denominators(d.data(), &active, d.size(), 4, codes.data());
  EXPECT_EQ(masked.low, 0);
  EXPECT_EQ(codes[3], 0);
  EXPECT_EQ(codes[0], 1);
}

TEST(DenominatorCodesValues, OfFourBitsLieSixteenApart) {
  EXPECT_EQ(code_bytes(0, 4), 0u);
  EXPECT_EQ(code_bytes(7, 4), 7u);
  EXPECT_EQ(code_bytes(31, 4), 16u);
  EXPECT_EQ(code_bytes(33, 4), 17u);
  EXPECT_EQ(code_bytes(1024, 4), 512u);
  EXPECT_EQ(code_bytes(33, 8), 33u);
  std::vector<std::uint8_t> codes(code_bytes(40, 4));
  for (std::size_t i = 0; i < 40; ++i)
    set_code(codes.data(), i, 4, static_cast<int>(i % 15 + 1));
  for (std::size_t i = 0; i < 40; ++i)
    EXPECT_EQ(code_at(codes.data(), i, 4), static_cast<int>(i % 15 + 1)) << i;
  EXPECT_EQ(codes[0], 1 | 2 << 4);  // elements 0 and 16
}

}  // namespace
}  // namespace thinwire::kernels::denominator_codes_values_test
