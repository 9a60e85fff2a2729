// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/lamb.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/adam_model.h"
#include "support/errors.h"
#include "support/guarded.h"
#include "support/kernel_cases.h"
#include "support/same_bits.h"
#include "support/values.h"
#include "thinwire/core/error.h"
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

// ---- by hand; tests above show that all targets do the same

/// Returns the sums of a part within one chunk.
LambSums moments_of(const AdamArrays& arrays, const AdamCoefficients& c) {
  LambSums sums;
  ref::lamb_moments(arrays, c, kSumChunk, {&sums, 1});
  return sums;
}

using Floats = std::vector<float>;

/// Numbers small enough that every operation is exact.
constexpr AdamCoefficients kExact{.beta1 = 0.5f,
                                  .one_minus_beta1 = 0.5f,
                                  .beta2 = 0.75f,
                                  .one_minus_beta2 = 0.25f,
                                  .epsilon = 1,
                                  .decoupled_decay = 0.25f,
                                  .minus_learning_rate = -0.5f};

TEST(LambValues, BothPassesByHand) {
  AdamCoefficients c = kExact;
  c.grad_scale = 0.5f;
  c.exp_avg_scale = 2;
  const Floats grads = {8, -8};
  Floats p = {8, 4};
  Floats m = {2, 14};
  Floats v = {0, 16};
  AdamArrays arrays{p.data(), m.data(), v.data(), grads, {}};
  // g = {4, -4}, m = {1 + 2, 7 - 2}, v = {0 + 4, 12 + 4}, d = {3, 5},
  // u = {6 / 3 + 8 / 4, 10 / 5 + 4 / 4}
  const LambSums sums = moments_of(arrays, c);
  EXPECT_EQ(m, (Floats{3, 5}));
  EXPECT_EQ(v, (Floats{4, 16}));
  EXPECT_EQ(p, (Floats{8, 4}));
  EXPECT_EQ(sums.params, 64 + 16);
  EXPECT_EQ(sums.update, 16 + 9);

  std::vector<BFloat16> rounded(2);
  arrays.low_precision = rounded;
  ref::lamb_update(arrays, c);
  EXPECT_EQ(p, (Floats{6, 2.5f}));
  EXPECT_EQ(rounded[0].bits, 0x40c0);
  EXPECT_EQ(rounded[1].bits, 0x4020);
  EXPECT_EQ(m, (Floats{3, 5}));
  EXPECT_EQ(v, (Floats{4, 16}));
}

TEST(LambValues, TheGradientIsDecayedBeforeTheMoments) {
  AdamCoefficients c = kExact;
  c.decoupled_decay = 0;
  c.l2_decay = 0.5f;
  const Floats grads = {2};
  float p = 4, m = 2, v = 0;  // g = 4, m = 3, v = 4, u = 1
  const LambSums sums = moments_of({&p, &m, &v, grads, {}}, c);
  EXPECT_EQ(m, 3);
  EXPECT_EQ(v, 4);
  EXPECT_EQ(sums.params, 16);
  EXPECT_EQ(sums.update, 1);
}

TEST(LambValues, SumsGoChunkByChunk) {
  const std::size_t size = 2 * kSumChunk + 45;
  Floats p = test::normal(size, 1);
  const Floats grads = test::normal(size, 2);
  Floats v(size, 0.0f);
  Floats d(size, 1.0f);
  // v stays 0 and d is 1: u = g + p / 4, or g alone.
  AdamCoefficients c = kExact;
  c.one_minus_beta1 = 1;
  c.one_minus_beta2 = 0;
  Floats u(size);
  for (std::size_t i = 0; i < size; ++i) u[i] = grads[i] + 0.25f * p[i];
  // A part that begins 300 elements before a chunk ends. It has more chunks
  // than those with which the kernels are compared.
  const std::size_t ends[] = {300, 300 + kSumChunk, size};
  for (const auto run : {lamb_moments, ref::lamb_moments}) {
    Floats m(size, 0.0f);
    std::vector<LambSums> sums(3);
    run({p.data(), m.data(), v.data(), grads, {}}, c, 300, sums);
    for (std::size_t k = 0, begin = 0; k < 3; begin = ends[k++]) {
      const auto chunk = [&](const Floats& x) {
        return ConstView(x).subview(begin, ends[k] - begin);
      };
      EXPECT_EQ(sums[k].params, sum_of_squares(chunk(p))) << k;
      EXPECT_EQ(sums[k].update, sum_of_squares(chunk(u))) << k;
    }
  }
  for (const auto run : {lamb_factor, ref::lamb_factor}) {
    const LambFactorSums factor = run({.fresh = v.data(),
                                       .denominator = d.data(),
                                       .params = p.data(),
                                       .exp_avg = {grads.data(), {}},
                                       .previous = {grads.data(), {}},
                                       .size = size},
                                      c);
    EXPECT_EQ(factor.plain, sum_of_squares(grads));
    EXPECT_EQ(factor.update, sum_of_squares(u));
    EXPECT_EQ(factor.ratio, 1);
  }
}

TEST(LambValues, FactorByHand) {
  // g = (m - previous / 2) / (1 / 2) = {4, -12, 0}
  const Floats m = {3, -5, 1};
  const Floats previous = {2, 2, 2};
  Floats fresh = {0, 0, 0};
  // g^2 / 4 = {4, 36, 0}, and d_fresh = {3, 7, 1}
  const Floats d = {6, 10, 3};
  const Floats p = {8, 4, 2};
  AdamCoefficients c = kExact;
  c.exp_avg_scale = 2;
  LambFactorArrays arrays{.fresh = fresh.data(),
                          .denominator = d.data(),
                          .params = p.data(),
                          .exp_avg = {m.data(), {}},
                          .previous = {previous.data(), {}},
                          .size = 3};
  LambFactorSums sums = ref::lamb_factor(arrays, c);
  EXPECT_EQ(fresh, (Floats{4, 36, 0}));
  EXPECT_EQ(sums.ratio, 3);  // {6 / 3, 10 / 7, 3 / 1}
  const float third = 2.0f / 3.0f;
  const double last = third;  // u0 = {1, -1, 2 / 3}, u = u0 + {2, 1, 1 / 2}
  const double last_u = third + 0.5f;
  EXPECT_EQ(sums.plain, 1.0 + 1 + last * last);
  EXPECT_EQ(sums.update, 9.0 + 0 + last_u * last_u);

  fresh = {0, 0, 0};
  arrays.floor = 6;  // {6 / 6, 10 / 7, 3 / 6}
  sums = ref::lamb_factor(arrays, c);
  EXPECT_EQ(sums.ratio, 10.0f / 7.0f);

  fresh = {0, 0, 0};
  c.decoupled_decay = 0;
  arrays.params = nullptr;
  sums = ref::lamb_factor(arrays, c);
  EXPECT_EQ(fresh, (Floats{4, 36, 0}));
  EXPECT_EQ(sums.plain, 0);
  EXPECT_EQ(sums.update, 0);
  EXPECT_EQ(sums.ratio, 10.0f / 7.0f);
}

TEST(LambValues, MomentaMayBeSignsAndElementsMasked) {
  const std::uint32_t bits = 0b1101;
  const std::uint32_t old_bits = 0b1011;
  const std::uint32_t active = 0b0111;
  // m = {-3, 3, -3, masked}, previous = {2, 2, -2, masked}:
  // g = 2 (m - previous / 2) = {-8, 4, -4, 0}
  Floats fresh = {0, 0, 0, 4};
  const Floats d = {5, 1, 9, 100};
  const Floats p = {0, 0, 0, 4};
  const LambFactorSums sums =
      ref::lamb_factor({.fresh = fresh.data(),
                        .denominator = d.data(),
                        .params = p.data(),
                        .exp_avg = {nullptr, {&bits, -3}},
                        .previous = {nullptr, {&old_bits, 2}},
                        .active = &active,
                        .size = 4},
                       kExact);
  EXPECT_EQ(fresh, (Floats{16, 4, 4, 3}));
  EXPECT_EQ(sums.ratio, 3);  // {5 / 5, 1 / 3, 9 / 3}, not 100 / 2.7
  const float first = -3.0f / 5.0f;
  const float third = -3.0f / 9.0f;
  const double plain = double{first} * first + double{third} * third;
  EXPECT_DOUBLE_EQ(sums.plain, plain + 9);
  EXPECT_DOUBLE_EQ(sums.update, plain + 9 + 1);  // and (4 / 4)^2, masked

  const std::uint32_t none = 0;
  EXPECT_EQ(ref::lamb_factor({.fresh = fresh.data(),
                              .denominator = d.data(),
                              .params = p.data(),
                              .exp_avg = {nullptr, {&bits, -3}},
                              .previous = {nullptr, {&old_bits, 2}},
                              .active = &none,
                              .size = 4},
                             kExact)
                .ratio,
            0);
}

TEST(LambValues, WrongArgumentsAreRefusedBeforeAnythingChanges) {
  const std::vector<double> doubles(2, 1.0);
  const Floats ones(2, 1.0f);
  Floats p = ones, m = ones, v = ones;
  std::vector<Half> three(3);
  const AdamArrays arrays{p.data(), m.data(), v.data(), ones, {}};
  AdamArrays bad = arrays;
  bad.grads = doubles;
  std::vector<LambSums> sums(2);
  for (const auto run : {lamb_moments, ref::lamb_moments}) {
    EXPECT_THROW(run(bad, kExact, kSumChunk, std::span(sums).first(1)), Error);
    const auto refused = [&](std::size_t first_chunk, std::size_t chunks,
                             std::string_view what) {
      test::expect_invalid({what}, [&] {
        run(arrays, kExact, first_chunk, std::span(sums).first(chunks));
      });
    };
    refused(0, 1, "first_chunk");
    refused(kSumChunk + 1, 1, "first_chunk");
    refused(2, 2, "sums");
    refused(1, 1, "sums");
  }
  bad = arrays;
  bad.low_precision = three;
  for (const auto run : {lamb_update, ref::lamb_update})
    EXPECT_THROW(run(bad, kExact), Error);
  const LambFactorArrays factor{.fresh = v.data(),
                                .denominator = p.data(),
                                .params = p.data(),
                                .size = 2};
  for (const auto run : {lamb_factor, ref::lamb_factor})
    for (const std::string_view missing : {"exp_avg", "previous"})
      test::expect_invalid({missing, "neither"}, [&] {
        LambFactorArrays one = factor;
        (missing == "previous" ? one.exp_avg : one.previous) = {m.data(), {}};
        (void)run(one, kExact);
      });
  for (const Floats& array : {p, m, v}) EXPECT_EQ(array, ones);
}

}  // namespace
}  // namespace thinwire::kernels::lamb_test
