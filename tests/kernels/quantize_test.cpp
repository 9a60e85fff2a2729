// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/quantize.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/kernel_cases.h"
#include "support/masks.h"
#include "support/values.h"

namespace thinwire::kernels::quantize_test {
namespace {

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
  for (const int bits : kBits)
    for (const auto& mask : test::masks(size))
      for (const auto& block : blocks())
        compare(
            quantize, ref::quantize,
            [&](auto run, auto c, auto words, auto step) {
              step[0] =
                  run(c.data(), bits, words.data(), test::active(mask), size);
            },
            block, test::random_words(quantized_words(size, bits), 5),
            std::vector<float>(1));
}

// All codes, also the one that quantize() never writes.
TEST_P(Quantize, DequantizeEqualsReferenceBitForBit) {
  for (const int bits : kBits)
    for (const auto& mask : test::masks(size))
      for (const float step : {0.3f, 0.0f, 0x1p-149f, INFINITY, NAN})
        compare(
            dequantize, ref::dequantize,
            [&](auto run, auto words, auto out) {
              run({words.data(), step}, bits, test::active(mask), out.data(),
                  size);
            },
            test::random_words(quantized_words(size, bits), 6),
            test::normal(size, 7));
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
      for (const auto& mask : test::masks(size))
        compare(
            quantized_average, ref::quantized_average,
            [&](auto run, auto out) {
              run(received, bits, 1 / 3.0f, test::active(mask), out.data(),
                  size);
            },
            test::normal(size, 9));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Quantize, test::few_kernel_cases(),
                         test::case_name);

}  // namespace
}  // namespace thinwire::kernels::quantize_test
