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
  // Off alignment by `skip`, with elements around it that must stay.
  struct Array {
    Array(const std::vector<float>& values, DType dtype, std::size_t skip)
        : all(values.size() + 2 * skip + 2, dtype), first(skip + 1) {
      size = values.size();
      ref::convert(std::vector<float>(all.size(), 3.0f), all.view());
      ref::convert(values, view());
    }
    View view() { return all.view().subview(first, size); }

    Buffer all;
    std::size_t first;
    std::size_t size = 0;
  };

  std::vector<std::vector<float>> blocks() const {
    return {test::normal(size, 3), std::vector<float>(size, -0.0f),
            std::vector<float>(size, 0x1p-149f),
            test::normal_and_special(size, 4)};
  }
};

TEST_P(QuantizeSum, EqualsReferenceBitForBit) {
  for (const int bits : kBits)
    for (const DType of_values : kFloats)
      for (const DType of_residual : {DType::kFloat32, DType::kBFloat16})
        for (const auto& block : blocks()) {
          Array values(block, of_values, skip);
          Array residual(test::normal(size, 5), of_residual, skip);
          Array error(test::normal(size, 6), of_residual, skip);
          Array want(test::normal(size, 6), of_residual, skip);
          std::vector<std::uint32_t> words(quantized_words(size, bits), 7u);
          std::vector<std::uint32_t> want_words = words;
          const float step = quantize_sum(
              {values.view(), 0x1.8p-3f, residual.view(), error.view()}, bits,
              words.data());
          const float want_step = ref::quantize_sum(
              {values.view(), 0x1.8p-3f, residual.view(), want.view()}, bits,
              want_words.data());
          EXPECT_TRUE(test::same_bits(step, want_step));
          EXPECT_EQ(words, want_words);
          EXPECT_TRUE(test::same_bytes(error.all.view(), want.all.view()));
        }
}

TEST_P(QuantizeSum, WritesItsErrorInPlaceAndTakesResidualsAlone) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Array residual(test::normal(size, 8), dtype, skip);
    Array want(test::normal(size, 8), dtype, skip);
    std::vector<std::uint32_t> words(quantized_words(size, 4));
    std::vector<std::uint32_t> want_words = words;
    const float step =
        quantize_sum({.residual = residual.view(), .error = residual.view()}, 4,
                     words.data());
    // By the kernel that it is made of.
    std::vector<float> c(size);
    ref::convert(want.view(), c);
    EXPECT_EQ(step,
              ref::quantize(c.data(), 4, want_words.data(), nullptr, size));
    ref::convert(c, want.view());
    EXPECT_EQ(words, want_words);
    EXPECT_TRUE(test::same_bytes(residual.all.view(), want.all.view()));
  }
}

TEST_P(QuantizeSum, AddScaledEqualsReferenceBitForBit) {
  for (const DType dtype : kFloats)
    for (const auto& block : blocks()) {
      Array values(block, dtype, skip);
      Array sum(test::normal(size, 9), DType::kFloat32, skip);
      Array want(test::normal(size, 9), DType::kFloat32, skip);
      add_scaled(sum.view(), values.view(), 0.3f);
      ref::add_scaled(want.view(), values.view(), 0.3f);
      EXPECT_TRUE(test::same_bytes(sum.all.view(), want.all.view()));
    }
}

TEST_P(QuantizeSum, DequantizeAddEqualsReferenceBitForBit) {
  for (const int bits : kBits) {
    const auto words = test::random_words(quantized_words(size, bits), 10);
    for (const DType dtype : kFloats)
      for (const float step : {0.3f, 0.0f, 0x1p-149f, INFINITY, NAN}) {
        Array values(test::normal(size, 11), dtype, skip);
        Array want(test::normal(size, 11), dtype, skip);
        dequantize_add({words.data(), step}, bits, values.view());
        ref::dequantize_add({words.data(), step}, bits, want.view());
        EXPECT_TRUE(test::same_bytes(values.all.view(), want.all.view()));
      }
  }
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
