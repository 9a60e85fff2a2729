// SPDX-License-Identifier: Apache-2.0
// Denominators in few bits: against the reference.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "support/errors.h"
#include "support/kernel_cases.h"
#include "support/masks.h"
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

TEST(DenominatorCodesErrors, NameWhatIsWrong) {
  float p = 0;
  std::uint8_t code = 0;
  const auto update = [&](const MomentumForm& m, CodedUpdateArrays arrays) {
    arrays.codes = &code;
    arrays.size = 1;
    sign_update_coded(m, arrays, {});
  };
  for (const int bits : {0, 1, 2, 16}) {
    test::expect_error(
        ErrorCode::kInvalidArgument, {"bits: must be 4 or 8"},
        [&] { (void)encode_denominators(&p, nullptr, 1, bits, &code); });
    test::expect_error(
        ErrorCode::kInvalidArgument, {"bits: must be 4 or 8"},
        [&] { update({.values = &p}, {.params = &p, .bits = bits}); });
  }
  test::expect_error(ErrorCode::kInvalidArgument, {"m: needs values or signs"},
                     [&] { update({}, {.params = &p}); });
  test::expect_error(ErrorCode::kInvalidArgument,
                     {"needs params, or high and low"},
                     [&] { update({.values = &p}, {}); });
}

}  // namespace
}  // namespace thinwire::kernels::denominator_codes_test
