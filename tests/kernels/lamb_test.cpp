// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/lamb.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/adam_model.h"
#include "support/guarded.h"
#include "support/kernel_cases.h"
#include "support/masks.h"
#include "support/values.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::kernels::lamb_test {
namespace {

using test::Guarded;

class LambKernels : public test::KernelTest {
 protected:
  /// A NaN hides everything else in a sum, so there are finite values too.
  template <class G, class L>
  void compare_passes(bool rounds, std::size_t first_chunk = kSumChunk) {
    const std::size_t chunks =
        size == 0 ? 0 : sum_chunks(kSumChunk - first_chunk + size);
    for (const AdamCoefficients& c : coefficient_cases()) {
      for (const bool special : {false, true}) {
        const auto params = values_of(size, 1, special);
        const auto exp_avg = values_of(size, 2, special);
        const auto exp_avg_sq = variances_of(size, special);
        const auto grads = test::rounded_to<G>(values_of(size, 5, special));
        compare(
            lamb_moments, ref::lamb_moments,
            [&](auto run, auto p, auto m, auto v, auto g, auto of_params,
                auto of_update) {
              std::vector<LambSums> sums(chunks);
              run({p.data(), m.data(), v.data(), g, {}}, c, first_chunk, sums);
              for (std::size_t k = 0; k < chunks; ++k) {
                of_params[k] = sums[k].params;
                of_update[k] = sums[k].update;
              }
            },
            params, exp_avg, exp_avg_sq, grads, std::vector<double>(chunks),
            std::vector<double>(chunks));
        compare(
            lamb_update, ref::lamb_update,
            [&](auto run, auto p, auto m, auto v, auto g, auto low) {
              run({p.data(), m.data(), v.data(), g,
                   rounds ? View(low) : View()},
                  c);
            },
            params, exp_avg, exp_avg_sq, grads, std::vector<L>(size));
      }
    }
  }
};

TEST_P(LambKernels, BothPassesEqualReferenceBitForBit) {
  compare_passes<float, Half>(false);
  compare_passes<Half, Half>(true);
  compare_passes<BFloat16, BFloat16>(true);
}

TEST_P(LambKernels, ChunksMayEndAnywhere) {
  for (const std::size_t first_chunk : {1, 31, 32, 777, 1023})
    compare_passes<float, Half>(false, first_chunk);
}

class LambFactor : public test::KernelTest {
 protected:
  void compare_factor(LambFactorArrays arrays, const AdamCoefficients& c,
                      bool special) {
    for (const auto& mask : test::masks(size)) {
      arrays.active = test::active(mask);
      compare(
          lamb_factor, ref::lamb_factor,
          [&](auto run, auto fresh, auto sums, auto ratio) {
            arrays.fresh = fresh.data();
            const LambFactorSums found = run(arrays, c);
            sums[0] = found.plain;
            sums[1] = found.update;
            ratio[0] = found.ratio;
          },
          special ? test::normal_and_special(size, 1) : test::positive(size, 1),
          std::vector<double>(2), std::vector<float>(1));
    }
  }
};

TEST_P(LambFactor, EqualsReferenceBitForBit) {
  const AdamCoefficients base{.exp_avg_scale = 1.7f, .exp_avg_sq_scale = 3};
  std::vector<AdamCoefficients> cases(3, base);
  cases[1].decoupled_decay = 0.1f;
  cases[1].epsilon_inside_sqrt = true;
  cases[2].decoupled_decay = -1e-3f;
  cases[2].epsilon = 0;  // 1 / 0 where the fresh variance is 0
  const auto words = test::random_words(sign_words(size), 2);
  const auto old_words = test::random_words(sign_words(size), 3);
  for (const bool special : {false, true}) {
    Guarded m(values_of(size, 4, special), skip);
    Guarded old_m(values_of(size, 5, special), skip);
    Guarded p(values_of(size, 6, special), skip);
    Guarded d(test::positive(size, 7), skip);
    for (const AdamCoefficients& c : cases) {
      LambFactorArrays arrays{.denominator = d.data(),
                              .params = p.data(),
                              .exp_avg = {m.data(), {}},
                              .previous = {old_m.data(), {}},
                              .size = size};
      compare_factor(arrays, c, special);
      arrays.previous = {nullptr, {old_words.data(), 0.3f}};
      arrays.floor = 0.5f;
      compare_factor(arrays, c, special);
      arrays.exp_avg = {nullptr, {words.data(), -0.6f}};
      compare_factor(arrays, c, special);
      if (c.decoupled_decay == 0) {
        arrays.params = nullptr;
        compare_factor(arrays, c, special);
      }
    }
  }
}

// Every ratio exceeds the one before by about one place: none may be passed
// over. The fresh variance stays as it is.
TEST_P(LambFactor, FindsARatioThatIsLargerByItsLastPlace) {
  const auto words = test::random_words(sign_words(size), 2);
  const auto compare_ratio = [&](const AdamCoefficients& c, float magnitude,
                                 float floor) {
    std::vector<float> fresh = test::positive(size, 8);
    std::vector<float> frozen(size);
    float ratio = 0.6f;
    for (std::size_t i = 0; i < size; ++i) {
      fresh[i] = fresh[i] * magnitude * magnitude;
      const float scaled = fresh[i] * c.exp_avg_sq_scale;
      const float d = c.epsilon_inside_sqrt ? std::sqrt(scaled + c.epsilon)
                                            : std::sqrt(scaled) + c.epsilon;
      ratio = std::nextafter(ratio, 1.0f);
      frozen[i] = std::max({d, floor, 0x1p-126f}) * ratio;
    }
    const LambFactorArrays arrays{.fresh = fresh.data(),
                                  .denominator = frozen.data(),
                                  .exp_avg = {nullptr, {words.data(), 1}},
                                  .previous = {nullptr, {words.data(), 1}},
                                  .floor = floor,
                                  .size = size};
    EXPECT_EQ(lamb_factor(arrays, c).ratio, ref::lamb_factor(arrays, c).ratio)
        << magnitude << " " << c.exp_avg_sq_scale << " " << c.epsilon << " "
        << floor;
  };
  AdamCoefficients c{.beta2 = 1, .one_minus_beta2 = 0};
  for (const float magnitude : {1e-38f, 1e-20f, 1.0f, 1e15f})
    for (const float scale : {1.0f, 3.0f, 1e-20f})
      for (const float epsilon : {0.0f, 1e-8f, 0.7f})
        for (const float floor : {0.0f, 0.8f, 2.0f}) {
          c.exp_avg_sq_scale = scale;
          c.epsilon = epsilon * magnitude;
          c.epsilon_inside_sqrt = false;
          compare_ratio(c, magnitude, floor * magnitude);
          c.epsilon_inside_sqrt = true;
          compare_ratio(c, magnitude, floor * magnitude);
        }
}

INSTANTIATE_TEST_SUITE_P(All, LambKernels, test::few_kernel_cases(),
                         test::case_name);
INSTANTIATE_TEST_SUITE_P(All, LambFactor, test::few_kernel_cases(),
                         test::case_name);

}  // namespace
}  // namespace thinwire::kernels::lamb_test
