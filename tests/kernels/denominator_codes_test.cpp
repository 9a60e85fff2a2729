// SPDX-License-Identifier: Apache-2.0
// Denominators in few bits: against the reference, against the C++ library's
// functions, and by hand.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "support/errors.h"
#include "support/kernel_cases.h"
#include "support/same_bits.h"
#include "support/values.h"
#include "thinwire/kernels/denominator_codes.h"
#include "thinwire/kernels/split_float.h"

namespace thinwire::kernels::denominator_codes_test {
namespace {

class DenominatorCodes : public test::KernelTest {
 protected:
  // Values over several octaves.
  [[nodiscard]] std::vector<float> denominators() const {
    std::vector<float> d = test::positive(size, 5);
    for (std::size_t i = 0; i < size; ++i) d[i] *= d[i] * 1e-5f;
    return d;
  }
};
INSTANTIATE_TEST_SUITE_P(All, DenominatorCodes,
                         test::kernel_cases_at({0, 1, 7, 15, 16, 17, 31, 32, 33,
                                                255, 1000, 1023, 1024}),
                         test::case_name);

TEST_P(DenominatorCodes, EncodingHasTheBitsOfTheReference) {
  for (const auto& d : {std::vector<float>(size, 1e-42f), denominators()})
    for (const int bits : {8, 4})
      for (const auto& mask : test::masks(size)) {
        const std::uint32_t* active = test::active(mask);
        std::vector<CodeRange> ranges;
        compare(
            encode_denominators, ref::encode_denominators,
            [&](auto run, auto of, auto codes) {
              ranges.push_back(
                  run(of.data(), active, size, bits, codes.data()));
              for (std::size_t i = 0; i < size; ++i) {
                const bool off =
                    active != nullptr && (active[i / 32] >> (i % 32) & 1u) == 0;
                EXPECT_EQ(code_at(codes.data(), i, bits),
                          off ? 0 : code_of(d[i], ranges[0], bits))
                    << i;
              }
            },
            d, std::vector<std::uint8_t>(code_bytes(size, bits), 0xaa));
        EXPECT_EQ(ranges[0], ranges[1]);
      }
}

TEST_P(DenominatorCodes, TheUpdateHasTheBitsOfTheReference) {
  const std::vector<float> d = denominators();
  const std::vector<float> momentum = test::normal(size, 8);
  const std::vector<float> start = test::normal(size, 9);
  std::vector<BFloat16> upper(size);
  std::vector<std::uint16_t> lower(size);
  split_float(start.data(), upper.data(), lower.data(), size);
  const auto words = test::random_words((size + 31) / 32, 10);
  for (const int bits : {8, 4})
    for (const auto& mask : test::masks(size))
      for (const float decay : {0.0f, 0.1f})
        for (const bool signs : {true, false}) {
          std::vector<std::uint8_t> codes(code_bytes(size, bits));
          const CodeRange range = encode_denominators(
              d.data(), test::active(mask), size, bits, codes.data());
          const AdamCoefficients c{.exp_avg_scale = 1.7f,
                                   .decoupled_decay = decay,
                                   .minus_learning_rate = -0.01f};
          const MomentumForm m =
              signs ? MomentumForm{.signs = {words.data(), 0.3f}}
                    : MomentumForm{.values = momentum.data()};
          // Whole floats, and their halves.
          compare(
              sign_update_coded, ref::sign_update_coded,
              [&](auto run, auto params, auto high, auto low, auto of) {
                run(m,
                    {.params = params.data(),
                     .codes = of.data(),
                     .range = range,
                     .bits = bits,
                     .size = size},
                    c);
                run(m,
                    {.high = high.data(),
                     .low = low.data(),
                     .codes = of.data(),
                     .range = range,
                     .bits = bits,
                     .size = size},
                    c);
                std::vector<float> joined(size);
                join_float(high.data(), low.data(), joined.data(), size);
                EXPECT_TRUE(test::same_bits<float>(joined, params));
              },
              start, upper, lower, codes);
        }
}

TEST(DenominatorCodesErrors, NameTheInvalidArgument) {
  float p = 0;
  std::uint8_t code = 0;
  const auto update = [&](const MomentumForm& m, CodedUpdateArrays arrays) {
    arrays.codes = &code;
    arrays.size = 1;
    sign_update_coded(m, arrays, {});
  };
  for (const int bits : {0, 1, 2, 16}) {
    test::expect_invalid({"bits: must be 4 or 8"}, [&] {
      (void)encode_denominators(&p, nullptr, 1, bits, &code);
    });
    test::expect_invalid({"bits: must be 4 or 8"}, [&] {
      update({.values = &p}, {.params = &p, .bits = bits});
    });
  }
  test::expect_invalid({"m: needs values or signs"},
                       [&] { update({}, {.params = &p}); });
  test::expect_invalid({"needs params, or high and low"},
                       [&] { update({.values = &p}, {}); });
}

// ---- what codes stand for

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

TEST(DenominatorCodesValues, OfFourBitsAreStoredSixteenApart) {
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
}  // namespace thinwire::kernels::denominator_codes_test
