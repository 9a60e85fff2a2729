// SPDX-License-Identifier: Apache-2.0
// Denominators in few bits: against the reference.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "support/errors.h"
#include "support/guarded.h"
#include "support/kernel_cases.h"
#include "support/masks.h"
#include "support/same_bits.h"
#include "support/values.h"
#include "thinwire/kernels/denominator_codes.h"
#include "thinwire/kernels/split_float.h"

namespace thinwire::kernels::denominator_codes_test {
namespace {

using test::Guarded;

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
  for (const bool equal : {false, true})
    for (const int bits : {8, 4})
      for (const auto& mask : test::masks(size)) {
        const std::uint32_t* active = test::active(mask);
        const auto d =
            equal ? std::vector<float>(size, 1e-42f) : denominators();
        Guarded own(d, skip);
        Guarded codes(std::vector<std::uint8_t>(code_bytes(size, bits), 0xaa),
                      skip);
        std::vector<std::uint8_t> want(code_bytes(size, bits), 0x55);
        const CodeRange range =
            encode_denominators(own.data(), active, size, bits, codes.data());
        EXPECT_EQ(range, ref::encode_denominators(d.data(), active, size, bits,
                                                  want.data()));
        EXPECT_TRUE(codes.is(want));
        for (std::size_t i = 0; i < size; ++i) {
          const int code = code_at(want.data(), i, bits);
          const bool off =
              active != nullptr && (active[i / 32] >> (i % 32) & 1u) == 0;
          EXPECT_EQ(code, off ? 0 : code_of(d[i], range, bits)) << i;
        }
      }
}

struct Halves {
  explicit Halves(const std::vector<float>& values)
      : high(values.size()), low(values.size()) {
    split_float(values.data(), high.data(), low.data(), values.size());
  }
  [[nodiscard]] std::vector<float> joined() const {
    std::vector<float> values(high.size());
    join_float(high.data(), low.data(), values.data(), values.size());
    return values;
  }
  std::vector<BFloat16> high;
  std::vector<std::uint16_t> low;
};

TEST_P(DenominatorCodes, TheUpdateHasTheBitsOfTheReference) {
  const std::vector<float> d = denominators();
  const std::vector<float> momentum = test::normal(size, 8);
  const std::vector<float> start = test::normal(size, 9);
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
          std::vector<float> want = start;
          Guarded own(start, skip);
          Guarded own_codes(codes, skip);
          CodedUpdateArrays arrays{.params = want.data(),
                                   .codes = codes.data(),
                                   .range = range,
                                   .bits = bits,
                                   .size = size};
          ref::sign_update_coded(m, arrays, c);
          arrays.params = own.data();
          arrays.codes = own_codes.data();
          sign_update_coded(m, arrays, c);
          EXPECT_TRUE(own.is(want));

          Halves of_ref(start);
          Halves of_own(start);
          Guarded high(of_own.high, skip);
          Guarded low(of_own.low, skip);
          arrays.params = nullptr;
          arrays.high = high.data();
          arrays.low = low.data();
          sign_update_coded(m, arrays, c);
          arrays.high = of_ref.high.data();
          arrays.low = of_ref.low.data();
          arrays.codes = codes.data();
          ref::sign_update_coded(m, arrays, c);
          EXPECT_TRUE(high.is(of_ref.high));
          EXPECT_TRUE(low.is(of_ref.low));
          const std::vector<float> joined = of_ref.joined();
          EXPECT_TRUE(test::same_bits<float>(joined, want));
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
