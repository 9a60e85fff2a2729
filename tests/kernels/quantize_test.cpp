// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/quantize.h"

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

// ---- by hand; Quantize.* shows that all targets do the same

using Floats = std::vector<float>;

TEST(QuantizeValues, FourBitsByHand) {
  // step = 14 / 7: q = {7, -7, 0 (a tie, to even), 2 (a tie, to even), -1, 0}
  Floats c = {14, -14, 1, 3, -2.5f, -0.0f};
  std::uint32_t word = 0xffff'ffffu;
  EXPECT_EQ(ref::quantize(c.data(), 4, &word, nullptr, 6), 2);
  EXPECT_EQ(word, 0x76970eu);
  EXPECT_EQ(c, (Floats{0, 0, 1, -1, -0.5f, 0}));
  Floats out(6, 9.0f);
  ref::dequantize({&word, 2}, 4, nullptr, out.data(), 6);
  EXPECT_EQ(out, (Floats{14, -14, 0, 4, -2, 0}));
}

TEST(QuantizeValues, EightBitsByHand) {
  // step = 1: q = {127, -127, 2, -4, 0}, codes {254, 0, 129, 123, 127}
  Floats c = {127, -127, 2.25f, -3.75f, 0.5f};
  std::uint32_t words[2] = {};
  EXPECT_EQ(ref::quantize(c.data(), 8, words, nullptr, 5), 1);
  EXPECT_EQ(words[0], 254u | 0u << 8 | 129u << 16 | 123u << 24);
  EXPECT_EQ(words[1], 127u);
  EXPECT_EQ(c, (Floats{0, 0, 0.25f, 0.25f, 0.5f}));
}

TEST(QuantizeValues, AverageByHand) {
  const std::uint32_t first = 0x8760u;   // q = {-7, -1, 0, 1}
  const std::uint32_t second = 0x7e78u;  // q = {1, 0, 7, 0}
  const std::vector<Quantized> received = {{&first, 2}, {&second, 4}};
  const std::uint32_t active = 0b0111;
  Floats out(4, 9.0f);
  ref::quantized_average(received, 4, 0.5f, &active, out.data(), 4);
  EXPECT_EQ(out, (Floats{-7 + 2, -1, 14, 0}));
  ref::quantized_average({}, 4, 1, nullptr, out.data(), 4);
  EXPECT_EQ(out, Floats(4, 0.0f));
}

// 1 is lost in 2^24 + 1, but not in 2^24 - 2^24 + 1.
TEST(QuantizeValues, RanksAreAddedInTheOrderGiven) {
  const std::uint32_t plus = 7 + 1;
  const std::uint32_t minus = 7 - 1;
  const std::vector<Quantized> lost = {
      {&plus, 0x1p24f}, {&plus, 1}, {&minus, 0x1p24f}};
  const std::vector<Quantized> kept = {
      {&plus, 0x1p24f}, {&minus, 0x1p24f}, {&plus, 1}};
  float out = 9;
  ref::quantized_average(lost, 4, 1, nullptr, &out, 1);
  EXPECT_EQ(out, 0);
  ref::quantized_average(kept, 4, 1, nullptr, &out, 1);
  EXPECT_EQ(out, 1);
}

TEST(QuantizeValues, MaskedElementsAffectNothingAndBitsPastTheEndAreZero) {
  const std::size_t size = 67;
  const std::vector<std::uint32_t> active = {0xffff'ffffu, 0xffff'fffau, 1};
  const auto masked = [](std::size_t i) {
    return i == 32 || i == 34 || i > 64;
  };
  for (const int bits : kBits) {
    const auto half = static_cast<float>((1 << (bits - 1)) - 1);
    Floats c(size, -half);
    for (std::size_t i = 0; i < size; ++i) {
      if (masked(i)) c[i] = NAN;
    }
    std::vector<std::uint32_t> words(quantized_words(size, bits), ~0u);
    Floats out(size, 9.0f);
    EXPECT_EQ(ref::quantize(c.data(), bits, words.data(), active.data(), size),
              1);
    ref::dequantize({words.data(), 2}, bits, active.data(), out.data(), size);
    for (std::size_t i = 0; i < words.size() * 32 / std::size_t(bits); ++i) {
      const std::size_t first = i * static_cast<std::size_t>(bits);
      const std::uint32_t code =
          words[first / 32] >> (first % 32) & ((1u << bits) - 1);
      const bool zero = i < size && masked(i);
      EXPECT_EQ(code, zero ? static_cast<std::uint32_t>(half) : 0u) << i;
      if (i >= size) continue;
      EXPECT_EQ(c[i], 0) << i;
      EXPECT_EQ(out[i], zero ? 0.0f : -2 * half) << i;
    }
  }
}

TEST(QuantizeValues, ZerosHaveStepZeroAndTinyValuesAreKept) {
  for (const int bits : kBits) {
    std::vector<std::uint32_t> words(quantized_words(33, bits));
    Floats c(33, 0.0f);
    EXPECT_EQ(ref::quantize(c.data(), bits, words.data(), nullptr, 33), 0);
    EXPECT_EQ(c, Floats(33, 0.0f));
    Floats out(33, 9.0f);
    ref::dequantize({words.data(), 5}, bits, nullptr, out.data(), 33);
    EXPECT_EQ(out, Floats(33, 0.0f));
  }
  std::uint32_t words[9];
  Floats c(33, 0x1p-149f);  // / 127 is 0
  EXPECT_EQ(ref::quantize(c.data(), 8, words, nullptr, 33), 0);
  EXPECT_EQ(c, Floats(33, 0x1p-149f));
}

TEST(QuantizeValues, ANonFiniteElementAffectsTheWholeBlock) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    Floats c(40, 1.0f);
    c[7] = bad;
    std::uint32_t words[10];
    const float step = ref::quantize(c.data(), 8, words, nullptr, 40);
    Floats out(40);
    ref::dequantize({words, step}, 8, nullptr, out.data(), 40);
    for (const float x : c) EXPECT_TRUE(std::isnan(x));
    for (const float x : out) EXPECT_TRUE(std::isnan(x));
  }
}

TEST(QuantizeValues, OtherWidthsAreRefusedBeforeAnythingChanges) {
  for (const int bits : {-8, 0, 1, 2, 3, 16, 32}) {
    Floats c = {1, 2};
    std::uint32_t words[2] = {5, 6};
    const auto refused = [&](const auto& call) {
      test::expect_invalid({"bits", "4 or 8", std::to_string(bits)}, call);
    };
    for (const auto run : {quantize, ref::quantize})
      refused([&] { (void)run(c.data(), bits, words, nullptr, 2); });
    for (const auto run : {dequantize, ref::dequantize})
      refused([&] { run({words, 1}, bits, nullptr, c.data(), 2); });
    for (const auto run : {quantized_average, ref::quantized_average})
      refused([&] { run({}, bits, 1, nullptr, c.data(), 2); });
    EXPECT_EQ(c, (Floats{1, 2}));
    EXPECT_EQ(words[0], 5u);
  }
}

// ---- compression with its sum in one call, and decoded values added in place

using test::Guarded;

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

TEST_P(QuantizeSum, WritesItsErrorInPlaceAndAcceptsResidualsAlone) {
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
    test::expect_invalid({text}, [&] { (void)quantize_sum(sum, 4, words); });
  };
  refuses({.residual = long_one, .error = long_one}, "at most 1024");
  refuses({.residual = halves, .error = halves}, "float32 or bfloat16");
  refuses({.residual = e, .error = std::span(e).first(3)}, "error: must have");
  refuses({.values = doubles, .residual = e, .error = e}, "values");
  test::expect_invalid({"sum"}, [&] { add_scaled(halves, e, 1); });
  test::expect_invalid({"bits"}, [&] { dequantize_add({words, 1}, 3, e); });
}

}  // namespace
}  // namespace thinwire::kernels::quantize_test
