// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/adam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/adam_model.h"
#include "support/kernel_cases.h"
#include "support/same_bits.h"
#include "support/values.h"
#include "thinwire/core/error.h"

namespace thinwire::kernels::adam_test {
namespace {

class AdamKernels : public test::KernelTest {
 protected:
  std::vector<float> values(std::uint32_t seed) const {
    return values_of(size, seed);
  }
  template <class G>
  std::vector<G> grads() const {
    return test::rounded_to<G>(values(5));
  }

  template <class G, class L>
  void compare_adam(bool rounds) {
    for (const AdamCoefficients& c : coefficient_cases())
      compare(
          adam, ref::adam,
          [&](auto run, auto p, auto m, auto v, auto g, auto low) {
            run({p.data(), m.data(), v.data(), g, rounds ? View(low) : View()},
                c);
          },
          values(1), values(2), variances_of(size), grads<G>(),
          std::vector<L>(size));
  }
  template <class G>
  void compare_moments() {
    for (const AdamCoefficients& c : coefficient_cases())
      compare(
          momentum, ref::momentum,
          [&](auto run, auto m, auto g) { run(m.data(), g, c); }, values(2),
          grads<G>());
    const AdamCoefficients c{.l2_decay = 1, .grad_scale = 1 / 3.0f};
    compare(
        moments, ref::moments,
        [&](auto run, auto m, auto v, auto g) {
          run(m.data(), v.data(), g, c);
        },
        values(2), variances_of(size), grads<G>());
  }
  template <class L>
  void compare_frozen_update(bool rounds) {
    for (const AdamCoefficients& c : coefficient_cases())
      compare(
          frozen_update, ref::frozen_update,
          [&](auto run, auto p, auto m, auto d, auto low) {
            run({p.data(), m.data(), d.data(), rounds ? View(low) : View(),
                 size},
                c);
          },
          values(1), values(2), test::positive(size, 4), std::vector<L>(size));
  }
};

TEST_P(AdamKernels, AdamEqualsReferenceBitForBit) {
  const auto stores = [this]<class G>(G /*type*/) {
    compare_adam<G, Half>(false);
    compare_adam<G, Half>(true);
    compare_adam<G, BFloat16>(true);
  };
  stores(float{});
  stores(Half{});
  stores(BFloat16{});
}

TEST_P(AdamKernels, MomentumAndMomentsEqualReferenceBitForBit) {
  compare_moments<float>();
  compare_moments<Half>();
  compare_moments<BFloat16>();
}

TEST_P(AdamKernels, FrozenUpdateEqualsReferenceBitForBit) {
  compare_frozen_update<Half>(false);
  compare_frozen_update<Half>(true);
  compare_frozen_update<BFloat16>(true);
}

TEST_P(AdamKernels, DenominatorEqualsReferenceBitForBitAlsoInPlace) {
  for (const AdamCoefficients& c : coefficient_cases())
    compare(
        denominator, ref::denominator,
        [&](auto run, auto v, auto d) {
          run(v.data(), d.data(), size, c);
          run(v.data(), v.data(), size, c);
        },
        variances_of(size), test::positive(size, 4));
}

INSTANTIATE_TEST_SUITE_P(All, AdamKernels, test::kernel_cases(),
                         test::case_name);

// ---- by hand; AdamKernels.* shows that all targets do the same

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Numbers small enough that every operation is exact.
constexpr AdamCoefficients kExact{.beta1 = 0.5f,
                                  .one_minus_beta1 = 0.5f,
                                  .beta2 = 0.75f,
                                  .one_minus_beta2 = 0.25f,
                                  .epsilon = 1,
                                  .minus_learning_rate = -0.5f};

struct State {
  float p, m, v;
};

State after_adam(State s, ConstView grad, const AdamCoefficients& c) {
  ref::adam({&s.p, &s.m, &s.v, grad, {}}, c);
  return s;
}

void expect_state(const State& got, const State& want) {
  EXPECT_EQ(got.p, want.p);
  EXPECT_EQ(got.m, want.m);
  EXPECT_EQ(got.v, want.v);
}

TEST(AdamValues, OneStepByHand) {
  const std::vector<float> grad = {4};
  // m = 2/2 + 4/2 = 3, v = 0 + 16/4 = 4, d = 2 + 1, u = 1, p = 10 - 1/2
  expect_state(after_adam({10, 2, 0}, grad, kExact), {9.5f, 3, 4});

  AdamCoefficients c = kExact;
  c.epsilon = 5;
  c.epsilon_inside_sqrt = true;  // d = sqrt(4 + 5) = 3
  expect_state(after_adam({10, 2, 0}, grad, c), {9.5f, 3, 4});

  c = kExact;
  c.exp_avg_scale = 10;  // u = 30 / (sqrt(4 * 20.25) + 1) = 3
  c.exp_avg_sq_scale = 20.25f;
  expect_state(after_adam({10, 2, 0}, grad, c), {8.5f, 3, 4});

  c = kExact;
  c.decoupled_decay = 0.25f;  // u = 1 + 8/4 = 3
  expect_state(after_adam({8, 2, 0}, grad, c), {6.5f, 3, 4});
}

TEST(AdamValues, TheGradientIsScaledAndThenDecayed) {
  AdamCoefficients c = kExact;
  c.grad_scale = 0.25f;
  c.l2_decay = 0.5f;  // g = 8/4 + 4/2 = 4; then as above
  const std::vector<float> grad = {8};
  expect_state(after_adam({4, 2, 0}, grad, c), {3.5f, 3, 4});
}

TEST(AdamValues, SixteenBitGradientsAreWidened) {
  const std::vector<Half> half = {{0x4400}};          // 4
  const std::vector<BFloat16> bfloat16 = {{0x4080}};  // 4
  expect_state(after_adam({10, 2, 0}, half, kExact), {9.5f, 3, 4});
  expect_state(after_adam({10, 2, 0}, bfloat16, kExact), {9.5f, 3, 4});
}

TEST(AdamValues, TheFrozenStageUsesTheSameArithmetic) {
  AdamCoefficients c = kExact;
  c.exp_avg_scale = 2;
  c.decoupled_decay = 0.25f;
  const std::vector<float> grad = {4};
  float m = 2;
  ref::momentum(&m, grad, c);
  EXPECT_EQ(m, 3);
  const float v = 25;
  float d = 0;
  ref::denominator(&v, &d, 1, c);
  EXPECT_EQ(d, 6);
  float p = 8;  // u = 3 * 2 / 6 + 8/4 = 3
  ref::frozen_update({&p, &m, &d, {}, 1}, c);
  EXPECT_EQ(p, 6.5f);
}

TEST(AdamValues, MomentsAreNotDecayed) {
  AdamCoefficients c = kExact;
  c.grad_scale = 0.5f;
  c.l2_decay = 100;
  const std::vector<float> grad = {8};
  float m = 2, v = 0;
  ref::moments(&m, &v, grad, c);
  EXPECT_EQ(m, 3);
  EXPECT_EQ(v, 4);
}

TEST(AdamValues, WithoutDecayAnInfiniteParameterStaysInfinite) {
  const std::vector<float> grad = {4};
  const State s = after_adam({kInfinity, 2, 0}, grad, kExact);
  EXPECT_EQ(s.p, kInfinity);
  float p = -kInfinity;
  const float m = 1;
  const float d = 1;
  ref::frozen_update({&p, &m, &d, {}, 1}, kExact);
  EXPECT_EQ(p, -kInfinity);
}

// CastValues tests how stores round.
TEST(AdamValues, LowPrecisionReceivesTheRoundedParameters) {
  std::vector<float> p = {1 + 3 * 0x1p-11f, -1 - 0x1p-8f, 65520.0f};
  const std::vector<float> m(3, 0.0f);
  const std::vector<float> d(3, 1.0f);
  std::vector<Half> half(3);
  std::vector<BFloat16> bfloat16(3);
  ref::frozen_update({p.data(), m.data(), d.data(), half, 3}, kExact);
  ref::frozen_update({p.data(), m.data(), d.data(), bfloat16, 3}, kExact);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(half[i].bits, to_half(p[i]).bits) << i;
    EXPECT_EQ(bfloat16[i].bits, to_bfloat16(p[i]).bits) << i;
  }
}

// m and g of one sign, so nothing cancels, and each rounding is a relative
// error of at most e = 2^-24. g: 1 e; m: products of at most 2 e, plus one for
// the sum: 3 e; v: (1 + 1 + 1 + 1) e and the sum: 5 e; d: (5 + 1) / 2 + the
// root + the sum: 5 e; u: 3 + 1 + 5 + 1 = 10 e, and 11 e with the decay. Then
// one for the product with lr, and one of the result's size for the last sum.
TEST(AdamValues, OneStepEqualsTheTextbookWithinRounding) {
  const std::size_t size = 1000;
  const AdamCoefficients c{.exp_avg_scale = 1 / (1 - 0.9f * 0.9f),
                           .exp_avg_sq_scale = 1 / (1 - 0.999f * 0.999f),
                           .decoupled_decay = 0.01f,
                           .minus_learning_rate = -0.001f,
                           .grad_scale = 1 / 3.0f};
  const std::vector<float> p = test::positive(size, 1);
  const std::vector<float> m = test::positive(size, 2);
  const std::vector<float> v = test::positive(size, 3);
  const std::vector<float> grads = test::positive(size, 4);
  std::vector<float> got_p = p, got_m = m, got_v = v;
  ref::adam({got_p.data(), got_m.data(), got_v.data(), grads, {}}, c);
  for (std::size_t i = 0; i < size; ++i) {
    const double g = double{grads[i]} * c.grad_scale;
    const double new_m = double{m[i]} * c.beta1 + c.one_minus_beta1 * g;
    const double new_v = double{v[i]} * c.beta2 + c.one_minus_beta2 * g * g;
    const double d = std::sqrt(new_v * c.exp_avg_sq_scale) + c.epsilon;
    const double u =
        new_m * c.exp_avg_scale / d + double{c.decoupled_decay} * p[i];
    const double step = double{c.minus_learning_rate} * u;
    const double e = 0x1p-24;
    ASSERT_NEAR(got_m[i], new_m, 3.01 * e * new_m) << i;
    ASSERT_NEAR(got_v[i], new_v, 5.01 * e * new_v) << i;
    ASSERT_NEAR(got_p[i], p[i] + step,
                12.01 * e * std::abs(step) + e * (p[i] + std::abs(step)))
        << i;
  }
}

TEST(AdamValues, WrongTypesAndSizesAreRefusedBeforeAnythingChanges) {
  const std::vector<double> doubles(2, 1.0);
  const std::vector<float> grads(2, 1.0f);
  std::vector<float> p(2, 1.0f), m(2, 1.0f), v(2, 1.0f), d(2, 1.0f);
  std::vector<float> floats(2);
  std::vector<Half> three(3);
  for (const auto run : {adam, ref::adam}) {
    EXPECT_THROW(run({p.data(), m.data(), v.data(), doubles, {}}, kExact),
                 Error);
    for (const View low : {View(floats), View(three)})
      EXPECT_THROW(run({p.data(), m.data(), v.data(), grads, low}, kExact),
                   Error);
  }
  for (const auto run : {frozen_update, ref::frozen_update})
    for (const View low : {View(floats), View(three)})
      EXPECT_THROW(run({p.data(), m.data(), d.data(), low, 2}, kExact), Error);
  for (const auto run : {momentum, ref::momentum})
    EXPECT_THROW(run(m.data(), doubles, kExact), Error);
  for (const auto& array : {p, m, v, d}) {
    EXPECT_EQ(array, std::vector<float>(2, 1.0f));
  }
}

}  // namespace
}  // namespace thinwire::kernels::adam_test
