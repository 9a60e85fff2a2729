// SPDX-License-Identifier: Apache-2.0
// Encoding in one pass: against the reference, and against the three steps that
// it stands for.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

#include "support/errors.h"
#include "support/guarded.h"
#include "support/kernel_cases.h"
#include "support/values.h"
#include "thinwire/kernels/norm.h"
#include "thinwire/kernels/sign_compress.h"

namespace thinwire::kernels::sign_encode_test {
namespace {

using test::Guarded;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
const std::vector<float> kScales = {0.0f, 0.8f, -0.3f, kInf, kNan};

bool is_active(const std::uint32_t* active, std::size_t i) {
  return active == nullptr || (active[i / 32] >> (i % 32) & 1u) != 0;
}

std::size_t count_active(const std::uint32_t* active, std::size_t size) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < size; ++i) count += is_active(active, i) ? 1 : 0;
  return count;
}

class SignEncode : public test::KernelTest {
 protected:
  std::vector<float> values(std::uint32_t seed, bool special) const {
    return special ? test::normal_and_special(size, seed)
                   : test::normal(size, seed);
  }

  /// `encode(kernel, block)` over residuals of type R that went out with each
  /// of `scales`.
  template <class R>
  void compare_over(const std::vector<float>& scales, auto* kernel,
                    auto* reference, const auto& encode) {
    if (sizeof(R) == 2 && size > kMostRoundedElements) return;
    for (const auto& mask : test::masks(size))
      for (const float scale : scales)
        // A NaN hides everything else in a sum.
        for (const bool special : {false, true})
          compare(
              kernel, reference,
              [&](auto run, auto residual, auto words, auto sent) {
                const std::uint32_t* active = test::active(mask);
                sent[0] = encode(
                    run, SignBlock{.residual = residual,
                                   .scale = scale,
                                   .words = words.data(),
                                   .active = active,
                                   .num_active = count_active(active, size)});
              },
              test::rounded_to<R>(values(1, special)),
              test::random_words(sign_words(size), 14), std::vector<float>(1));
  }

  void compare_input(const SignInput& input, const std::vector<float>& scales) {
    const auto encode = [&](auto run, const SignBlock& block) {
      return run(input, block);
    };
    compare_over<float>(scales, sign_encode, ref::sign_encode, encode);
    compare_over<BFloat16>({0.0f}, sign_encode, ref::sign_encode, encode);
  }

  template <class G>
  void compare_gradients() {
    AdamCoefficients c;
    c.grad_scale = 1 / 3.0f;
    c.exp_avg_scale = 1.7f;
    c.minus_learning_rate = -0.01f;
    const auto signs = test::random_words(sign_words(size), 12);
    Guarded exp_avg(test::normal(size, 3), skip);
    Guarded grads(test::rounded_to<G>(values(4, false)), skip);
    Guarded denominators(test::positive(size, 8), skip);
    Guarded accumulated(test::normal(size, 9), skip);
    SignInput input{.grads = grads.span(), .coefficients = &c, .factor = 1.3f};
    for (const bool is_mean : {false, true}) {
      input.exp_avg = is_mean ? nullptr : exp_avg.data();
      input.mean = {signs.data(), 0.37f};
      input.denominator = nullptr;
      compare_input(input, {0.8f});
      input.denominator = denominators.data();
      input.accumulated = nullptr;
      compare_input(input, {0.8f});
      input.accumulated = accumulated.data();
      compare_input(input, {0.8f});
    }
  }
};

TEST_P(SignEncode, OfValuesEqualsReference) {
  for (const bool special : {false, true}) {
    Guarded x(values(2, special), skip);
    compare_input({.values = x.data()}, kScales);
  }
  compare_input({}, kScales);
}

TEST_P(SignEncode, OfGradientsEqualsReference) {
  compare_gradients<float>();
  compare_gradients<Half>();
  compare_gradients<BFloat16>();
}

TEST_P(SignEncode, OfAnAverageEqualsReference) {
  for (const std::size_t ranks : {0u, 1u, 3u, 16u, 17u, 33u}) {
    const auto words = test::random_words(ranks * sign_words(size), 13);
    std::vector<Signs> signs;
    for (std::size_t r = 0; r < ranks; ++r)
      signs.push_back({words.data() + r * sign_words(size),
                       0.1f + 0.7f * static_cast<float>(r)});
    const float inverse = 1.0f / static_cast<float>(ranks + 1);
    const auto encode = [&](auto run, const SignBlock& block) {
      return run(signs, inverse, block);
    };
    compare_over<float>(kScales, sign_encode_average, ref::sign_encode_average,
                        encode);
    compare_over<BFloat16>({0.0f}, sign_encode_average,
                           ref::sign_encode_average, encode);
  }
}

// The steps apart, with the error in memory after each time.
TEST_P(SignEncode, EqualsSumScaleAndSplitInEveryCall) {
  for (const auto& mask : test::masks(size)) {
    const std::uint32_t* active = test::active(mask);
    std::vector<float> error(size);
    std::vector<float> kept(size);
    std::vector<std::uint32_t> want(sign_words(size));
    std::vector<std::uint32_t> got(sign_words(size));
    SignBlock block{.residual = kept,
                    .words = got.data(),
                    .active = active,
                    .num_active = count_active(active, size)};
    for (std::uint32_t time = 0; time < 4; ++time) {
      const std::vector<float> x = values(30 + time, false);
      const SignInput input{.values = x.data()};
      for (std::size_t i = 0; i < size; ++i)
        error[i] = is_active(active, i) ? x[i] + error[i] : 0.0f;
      const float scale = sign_scale(sum_of_squares(error), block.num_active);
      sign_split(error.data(), scale, want.data(), active, size);
      block.scale = sign_encode(input, block);
      EXPECT_TRUE(test::same_bits(block.scale, scale)) << time;
      EXPECT_EQ(got, want) << time;
      std::vector<float> formed = kept;
      std::vector<std::uint32_t> unused(sign_words(size));
      sign_split(formed.data(), block.scale, unused.data(), active, size);
      EXPECT_TRUE(test::same_bits<float>(formed, error)) << time;
    }
  }
}

TEST_P(SignEncode, MayWriteItsSignsOverThoseOfTheMean) {
  const AdamCoefficients c;
  const std::vector<float> grads = test::normal(size, 5);
  const auto mean = test::random_words(sign_words(size), 6);
  std::vector<std::uint32_t> apart(sign_words(size));
  std::vector<std::uint32_t> over = mean;
  std::vector<float> c_apart = test::normal(size, 7);
  std::vector<float> c_over = c_apart;
  SignInput input{
      .grads = grads, .mean = {mean.data(), 0.4f}, .coefficients = &c};
  SignBlock block{.residual = c_apart,
                  .scale = 0.5f,
                  .words = apart.data(),
                  .num_active = size};
  const float want = sign_encode(input, block);
  input.mean.words = block.words = over.data();
  block.residual = c_over;
  EXPECT_EQ(sign_encode(input, block), want);
  EXPECT_EQ(over, apart);
  EXPECT_TRUE(test::same_bits<float>(c_over, c_apart));
}

INSTANTIATE_TEST_SUITE_P(All, SignEncode,
                         test::kernel_cases_at({0, 1, 31, 32, 33, 255, 1024,
                                                2093}),
                         test::case_name);

TEST(SignBlock, IsRefusedWithAnotherTypeOrTooManyRoundedElements) {
  std::vector<Half> halves(4);
  std::vector<BFloat16> many(kMostRoundedElements + 1);
  std::vector<std::uint32_t> words(sign_words(many.size()), 7u);
  const auto expect_refused = [&](View residual, std::string_view allowed,
                                  std::string_view given) {
    const SignBlock block{.residual = residual, .words = words.data()};
    test::expect_invalid({"block.residual", allowed, given},
                         [&] { (void)sign_encode({}, block); });
    test::expect_invalid({"block.residual", allowed, given},
                         [&] { (void)sign_encode_average({}, 1, block); });
  };
  expect_refused(halves, "float32 or bfloat16", "got float16");
  expect_refused(many, "at most 1024", "got 1025");
  EXPECT_EQ(words, std::vector<std::uint32_t>(words.size(), 7u));
}

}  // namespace
}  // namespace thinwire::kernels::sign_encode_test
