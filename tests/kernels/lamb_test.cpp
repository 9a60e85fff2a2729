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
using test::same_bits;

class LambKernels : public test::KernelTest {
 protected:
  /// A NaN hides everything else in a sum, so there are finite values too.
  template <class G, class L>
  void compare_passes(bool rounds, std::size_t first_chunk = kSumChunk) {
    const std::size_t chunks =
        size == 0 ? 0 : sum_chunks(kSumChunk - first_chunk + size);
    std::vector<LambSums> sums(chunks), want_sums(chunks);
    for (const AdamCoefficients& c : coefficient_cases()) {
      for (const bool special : {false, true}) {
        Model<G, L> got(size, skip, rounds, special);
        Model<G, L> want(size, 0, rounds, special);
        lamb_moments(got.adam_arrays(), c, first_chunk, sums);
        ref::lamb_moments(want.adam_arrays(), c, first_chunk, want_sums);
        for (std::size_t k = 0; k < chunks; ++k) {
          EXPECT_TRUE(same_bits(sums[k].params, want_sums[k].params)) << k;
          EXPECT_TRUE(same_bits(sums[k].update, want_sums[k].update)) << k;
        }
        got.expect_equals(want);
        lamb_update(got.adam_arrays(), c);
        ref::lamb_update(want.adam_arrays(), c);
        got.expect_equals(want);
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
  void compare(LambFactorArrays arrays, const AdamCoefficients& c,
               bool special) {
    for (const auto& mask : test::masks(size)) {
      const std::vector<float> before =
          special ? test::normal_and_special(size, 1) : test::positive(size, 1);
      Guarded fresh(before, skip);
      std::vector<float> want_fresh = before;
      arrays.active = test::active(mask);
      arrays.fresh = fresh.data();
      const LambFactorSums got = lamb_factor(arrays, c);
      arrays.fresh = want_fresh.data();
      const LambFactorSums want = ref::lamb_factor(arrays, c);
      EXPECT_TRUE(fresh.is(want_fresh));
      EXPECT_TRUE(same_bits(got.plain, want.plain));
      EXPECT_TRUE(same_bits(got.update, want.update));
      EXPECT_TRUE(same_bits(got.ratio, want.ratio));
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
    Guarded m(Model<float, Half>::values(size, 4, special), skip);
    Guarded old_m(Model<float, Half>::values(size, 5, special), skip);
    Guarded p(Model<float, Half>::values(size, 6, special), skip);
    Guarded d(test::positive(size, 7), skip);
    for (const AdamCoefficients& c : cases) {
      LambFactorArrays arrays{.denominator = d.data(),
                              .params = p.data(),
                              .exp_avg = {m.data(), {}},
                              .previous = {old_m.data(), {}},
                              .size = size};
      compare(arrays, c, special);
      arrays.previous = {nullptr, {old_words.data(), 0.3f}};
      arrays.floor = 0.5f;
      compare(arrays, c, special);
      arrays.exp_avg = {nullptr, {words.data(), -0.6f}};
      compare(arrays, c, special);
      if (c.decoupled_decay == 0) {
        arrays.params = nullptr;
        compare(arrays, c, special);
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
