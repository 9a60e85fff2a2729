// SPDX-License-Identifier: Apache-2.0
// Compression with its sum in one call, and decoded values added in place.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/errors.h"
#include "support/guarded.h"
#include "support/kernel_cases.h"
#include "support/values.h"
#include "thinwire/core/buffer.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/kernels/quantize.h"

namespace thinwire::kernels::quantize_sum_test {
namespace {

using test::Guarded;

constexpr int kBits[] = {4, 8};
constexpr DType kFloats[] = {DType::kFloat32, DType::kFloat16,
                             DType::kBFloat16};

// Without the SIMD conversions, whose turn it is.
Buffer rounded(const std::vector<float>& values, DType dtype) {
  Buffer result(values.size(), dtype);
  ref::convert(values, result.view());
  return result;
}

class QuantizeSum : public test::KernelTest {
 protected:
  std::vector<std::vector<float>> blocks() const {
    return {test::normal(size, 3), std::vector<float>(size, -0.0f),
            std::vector<float>(size, 0x1p-149f),
            test::normal_and_special(size, 4)};
  }
  template <class T>
  std::vector<T> rounded_normal(std::uint32_t seed) const {
    return test::rounded_to<T>(test::normal(size, seed));
  }

  template <class V, class R>
  void compare_sums() {
    for (const int bits : kBits)
      for (const auto& block : blocks())
        compare(
            quantize_sum, ref::quantize_sum,
            [&](auto run, auto values, auto residual, auto error, auto words,
                auto step) {
              step[0] =
                  run({values, 0x1.8p-3f, residual, error}, bits, words.data());
            },
            test::rounded_to<V>(block), rounded_normal<R>(5),
            rounded_normal<R>(6),
            std::vector<std::uint32_t>(quantized_words(size, bits), 7u),
            std::vector<float>(1));
  }

  // By the kernel that it is made of.
  template <class R>
  void compare_in_place() {
    Guarded residual(rounded_normal<R>(8), skip);
    std::vector<std::uint32_t> words(quantized_words(size, 4));
    std::vector<std::uint32_t> want_words = words;
    const float step =
        quantize_sum({.residual = residual.span(), .error = residual.span()}, 4,
                     words.data());
    std::vector<R> want = rounded_normal<R>(8);
    std::vector<float> c(size);
    ref::convert(want, c);
    EXPECT_EQ(step,
              ref::quantize(c.data(), 4, want_words.data(), nullptr, size));
    ref::convert(c, want);
    EXPECT_EQ(words, want_words);
    EXPECT_TRUE(residual.is(want));
  }

  template <class T>
  void compare_added() {
    for (const auto& block : blocks())
      compare(
          add_scaled, ref::add_scaled,
          [](auto run, auto sum, auto values) { run(sum, values, 0.3f); },
          test::normal(size, 9), test::rounded_to<T>(block));
    for (const int bits : kBits)
      for (const float step : {0.3f, 0.0f, 0x1p-149f, INFINITY, NAN})
        compare(
            dequantize_add, ref::dequantize_add,
            [&](auto run, auto words, auto values) {
              run({words.data(), step}, bits, values);
            },
            test::random_words(quantized_words(size, bits), 10),
            rounded_normal<T>(11));
  }
};

TEST_P(QuantizeSum, EqualsReferenceBitForBit) {
  compare_sums<float, float>();
  compare_sums<float, BFloat16>();
  compare_sums<Half, float>();
  compare_sums<Half, BFloat16>();
  compare_sums<BFloat16, float>();
  compare_sums<BFloat16, BFloat16>();
}

TEST_P(QuantizeSum, WritesItsErrorInPlaceAndTakesResidualsAlone) {
  compare_in_place<float>();
  compare_in_place<BFloat16>();
}

TEST_P(QuantizeSum, AddScaledAndDequantizeAddEqualReferenceBitForBit) {
  compare_added<float>();
  compare_added<Half>();
  compare_added<BFloat16>();
}

INSTANTIATE_TEST_SUITE_P(All, QuantizeSum,
                         test::kernel_cases_at({0, 1, 7, 31, 32, 33, 255, 1023,
                                                1024}),
                         test::case_name);

// c = {2 * 3 + 1, 2 * -1 + 0, 2 * 0.5 + 6} = {7, -2, 7}, step 7 / 7.
TEST(QuantizeSumValues, ByHand) {
  for (const DType dtype : kFloats) {
    const Buffer values = rounded({3, -1, 0.5f}, dtype);
    std::vector<float> e = {1, 0.25f, 6};
    std::uint32_t word = 0;
    EXPECT_EQ(quantize_sum({values.view(), 2, e, e}, 4, &word), 1);
    EXPECT_EQ(word, 0xe5eu);
    EXPECT_EQ(e, (std::vector<float>{0, 0.25f, 0}));
    Buffer replica = rounded({1, 1, -7}, dtype);
    dequantize_add({&word, 1}, 4, replica.view());
    std::vector<float> sum(3);
    ref::convert(replica.view(), sum);
    EXPECT_EQ(sum, (std::vector<float>{8, -1, 0}));
  }
}

TEST(QuantizeSumValues, RefusesOtherSizesAndTypes) {
  std::vector<float> e(4), long_one(1025);
  std::vector<double> doubles(4);
  std::vector<Half> halves(4);
  std::uint32_t words[256] = {};
  const auto refuses = [&](const QuantizedSum& sum, const char* text) {
    test::expect_error(ErrorCode::kInvalidArgument, {text},
                       [&] { (void)quantize_sum(sum, 4, words); });
  };
  refuses({.residual = long_one, .error = long_one}, "at most 1024");
  refuses({.residual = halves, .error = halves}, "float32 or bfloat16");
  refuses({.residual = e, .error = std::span(e).first(3)}, "error: must have");
  refuses({.values = doubles, .residual = e, .error = e}, "values");
  test::expect_error(ErrorCode::kInvalidArgument, {"sum"},
                     [&] { add_scaled(halves, e, 1); });
  test::expect_error(ErrorCode::kInvalidArgument, {"bits"}, [&] {
    dequantize_add({words, 1}, 3, e);
  });
}

}  // namespace
}  // namespace thinwire::kernels::quantize_sum_test
