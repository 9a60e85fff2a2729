// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign_compress.h"

#include <gtest/gtest.h>

#include "support/guarded.h"
#include "support/kernel_cases.h"
#include "support/masks.h"
#include "support/values.h"

namespace thinwire::kernels::sign_compress_test {
namespace {

using test::Guarded;

class SignKernels : public test::KernelTest {
 protected:
  std::vector<float> values(std::uint32_t seed, bool special) const {
    return special ? test::normal_and_special(size, seed)
                   : test::normal(size, seed);
  }
};

TEST_P(SignKernels, SplitEqualsReference) {
  std::vector<float> scales = test::special_values();
  scales.push_back(0.8f);
  const std::vector<std::uint32_t> garbage =
      test::random_words(sign_words(size), 14);
  for (const auto& mask : test::masks(size)) {
    const std::uint32_t* active = test::active(mask);
    for (const float scale : scales) {
      Guarded error(values(5, true), skip);
      Guarded words(garbage, skip);
      std::vector<float> want_error = values(5, true);
      std::vector<std::uint32_t> want_words = garbage;
      sign_split(error.data(), scale, words.data(), active, size);
      ref::sign_split(want_error.data(), scale, want_words.data(), active,
                      size);
      EXPECT_TRUE(error.is(want_error)) << scale;
      EXPECT_TRUE(words.is(want_words)) << scale;
    }
  }
}

TEST_P(SignKernels, DecodeEqualsReference) {
  const auto words = test::random_words(sign_words(size), 15);
  for (const auto& mask : test::masks(size)) {
    const std::uint32_t* active = test::active(mask);
    for (const float scale : test::special_values()) {
      Guarded out(test::normal(size, 6), skip);
      std::vector<float> want(size);
      sign_decode({words.data(), scale}, active, out.data(), size);
      ref::sign_decode({words.data(), scale}, active, want.data(), size);
      EXPECT_TRUE(out.is(want)) << scale;
    }
  }
}

TEST_P(SignKernels, UpdateEqualsReference) {
  const auto words = test::random_words(sign_words(size), 16);
  const auto compare = [&]<class L>(const std::vector<L>& low, bool rounds,
                                    const AdamCoefficients& c,
                                    const std::uint32_t* active) {
    Guarded params(values(7, true), skip);
    Guarded denominators(test::positive(size, 8), skip);
    Guarded rounded(low, skip);
    std::vector<float> want_params = values(7, true);
    std::vector<L> want_rounded = low;
    const Signs mean{words.data(), 0.6f};
    sign_update(mean, active,
                {.params = params.data(),
                 .denominator = denominators.data(),
                 .low_precision = rounds ? View(rounded.span()) : View(),
                 .size = size},
                c);
    ref::sign_update(mean, active,
                     {.params = want_params.data(),
                      .denominator = denominators.data(),
                      .low_precision = rounds ? View(want_rounded) : View(),
                      .size = size},
                     c);
    EXPECT_TRUE(params.is(want_params));
    EXPECT_TRUE(rounded.is(want_rounded));
  };
  for (const auto& mask : test::masks(size)) {
    const std::uint32_t* active = test::active(mask);
    for (const float decay : {0.0f, 0.01f}) {
      const AdamCoefficients c{.exp_avg_scale = 1.7f,
                               .decoupled_decay = decay,
                               .minus_learning_rate = -0.01f};
      compare(std::vector<Half>(size), false, c, active);
      compare(std::vector<Half>(size), true, c, active);
      compare(std::vector<BFloat16>(size), true, c, active);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, SignKernels, test::kernel_cases(),
                         test::case_name);

}  // namespace
}  // namespace thinwire::kernels::sign_compress_test
