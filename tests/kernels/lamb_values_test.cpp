// SPDX-License-Identifier: Apache-2.0
// What LAMB's kernels compute, by hand. LambKernels.* and LambFactor.* show
// that those for every target do the same.
#include <gtest/gtest.h>

#include <vector>

#include "support/errors.h"
#include "support/same_bits.h"
#include "support/values.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/lamb.h"
#include "thinwire/kernels/norm.h"

namespace thinwire::kernels::lamb_values_test {
namespace {

/// Of a part within one chunk.
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
      test::expect_error(ErrorCode::kInvalidArgument, {what}, [&] {
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
      test::expect_error(
          ErrorCode::kInvalidArgument, {missing, "neither"}, [&] {
            LambFactorArrays one = factor;
            (missing == "previous" ? one.exp_avg : one.previous) = {m.data(),
                                                                    {}};
            (void)run(one, kExact);
          });
  for (const Floats& array : {p, m, v}) EXPECT_EQ(array, ones);
}

}  // namespace
}  // namespace thinwire::kernels::lamb_values_test
