// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/sign_compress.h"

#include <gtest/gtest.h>

#include "support/kernel_cases.h"
#include "support/masks.h"
#include "support/values.h"

namespace thinwire::kernels::sign_compress_test {
namespace {

class SignKernels : public test::KernelTest {
 protected:
  template <class L>
  void compare_updates(bool rounds) {
    for (const auto& mask : test::masks(size))
      for (const float decay : {0.0f, 0.01f}) {
        const AdamCoefficients c{.exp_avg_scale = 1.7f,
                                 .decoupled_decay = decay,
                                 .minus_learning_rate = -0.01f};
        compare(
            sign_update, ref::sign_update,
            [&](auto run, auto words, auto p, auto d, auto low) {
              run({words.data(), 0.6f}, test::active(mask),
                  {.params = p.data(),
                   .denominator = d.data(),
                   .low_precision = rounds ? View(low) : View(),
                   .size = size},
                  c);
            },
            test::random_words(sign_words(size), 16),
            test::normal_and_special(size, 7), test::positive(size, 8),
            std::vector<L>(size));
      }
  }
};

TEST_P(SignKernels, SplitEqualsReference) {
  std::vector<float> scales = test::special_values();
  scales.push_back(0.8f);
  for (const auto& mask : test::masks(size))
    for (const float scale : scales)
      compare(
          sign_split, ref::sign_split,
          [&](auto run, auto error, auto words) {
            run(error.data(), scale, words.data(), test::active(mask), size);
          },
          test::normal_and_special(size, 5),
          test::random_words(sign_words(size), 14));
}

TEST_P(SignKernels, DecodeEqualsReference) {
  for (const auto& mask : test::masks(size))
    for (const float scale : test::special_values())
      compare(
          sign_decode, ref::sign_decode,
          [&](auto run, auto words, auto out) {
            run({words.data(), scale}, test::active(mask), out.data(), size);
          },
          test::random_words(sign_words(size), 15), test::normal(size, 6));
}

TEST_P(SignKernels, UpdateEqualsReference) {
  compare_updates<Half>(false);
  compare_updates<Half>(true);
  compare_updates<BFloat16>(true);
}

INSTANTIATE_TEST_SUITE_P(All, SignKernels, test::kernel_cases(),
                         test::case_name);

}  // namespace
}  // namespace thinwire::kernels::sign_compress_test
