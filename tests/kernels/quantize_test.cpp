// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/quantize.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/guarded.h"
#include "support/kernel_cases.h"
#include "support/masks.h"
#include "support/values.h"

namespace thinwire::kernels::quantize_test {
namespace {

using test::Guarded;

constexpr int kBits[] = {4, 8};

class Quantize : public test::KernelTest {
 protected:
  /// What blocks hold: values as usual; nothing but zeros; such that the step
  /// is subnormal or 0; what is not finite.
  std::vector<std::vector<float>> blocks() const {
    std::vector<float> tiny = test::normal(size, 1);
    for (float& x : tiny) x = std::ldexp(x, -144);
    std::vector<float> finite = test::normal_and_special(size, 2);
    for (float& x : finite) x = std::isfinite(x) ? x : -0.0f;
    std::vector<float> infinite = finite;
    if (!infinite.empty()) infinite.back() = -INFINITY;
    return {test::normal(size, 3),
            std::vector<float>(size, -0.0f),
            std::vector<float>(size, -0x1p-149f),
            tiny,
            finite,
            infinite,
            test::normal_and_special(size, 4)};
  }
};

TEST_P(Quantize, EqualsReferenceBitForBit) {
  for (const int bits : kBits) {
    const std::vector<std::uint32_t> garbage =
        test::random_words(quantized_words(size, bits), 5);
    for (const auto& mask : test::masks(size)) {
      for (const auto& block : blocks()) {
        Guarded c(block, skip);
        Guarded words(garbage, skip);
        std::vector<float> want_c = block;
        std::vector<std::uint32_t> want_words = garbage;
        const float step =
            quantize(c.data(), bits, words.data(), test::active(mask), size);
        const float want_step = ref::quantize(
            want_c.data(), bits, want_words.data(), test::active(mask), size);
        EXPECT_TRUE(test::same_bits(step, want_step));
        EXPECT_TRUE(c.is(want_c)) << bits;
        EXPECT_TRUE(words.is(want_words)) << bits;
      }
    }
  }
}

// All codes, also the one that quantize() never writes.
TEST_P(Quantize, DequantizeEqualsReferenceBitForBit) {
  for (const int bits : kBits) {
    Guarded words(test::random_words(quantized_words(size, bits), 6), skip);
    for (const auto& mask : test::masks(size)) {
      for (const float step : {0.3f, 0.0f, 0x1p-149f, INFINITY, NAN}) {
        Guarded out(test::normal(size, 7), skip);
        std::vector<float> want(size);
        const Quantized q{words.data(), step};
        dequantize(q, bits, test::active(mask), out.data(), size);
        ref::dequantize(q, bits, test::active(mask), want.data(), size);
        EXPECT_TRUE(out.is(want)) << bits << " bits, step " << step;
      }
    }
  }
}

TEST_P(Quantize, AverageEqualsReferenceBitForBit) {
  for (const int bits : kBits) {
    const std::size_t stride = quantized_words(size, bits);
    const auto words = test::random_words(5 * stride, 8);
    for (const std::size_t ranks : {0u, 1u, 5u}) {
      std::vector<Quantized> received;
      for (std::size_t r = 0; r < ranks; ++r) {
        received.push_back({words.data() + r * stride,
                            r == 1 ? 0 : 0.3f * static_cast<float>(r + 1)});
      }
      for (const auto& mask : test::masks(size)) {
        Guarded out(test::normal(size, 9), skip);
        std::vector<float> want(size);
        quantized_average(received, bits, 1 / 3.0f, test::active(mask),
                          out.data(), size);
        ref::quantized_average(received, bits, 1 / 3.0f, test::active(mask),
                               want.data(), size);
        EXPECT_TRUE(out.is(want)) << bits << " bits, " << ranks << " ranks";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Quantize, test::few_kernel_cases(),
                         test::case_name);

}  // namespace
}  // namespace thinwire::kernels::quantize_test
