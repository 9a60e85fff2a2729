// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/local_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "support/kernel_cases.h"
#include "support/same_bits.h"
#include "support/values.h"
#include "thinwire/core/error.h"

namespace thinwire::kernels::local_step_test {
namespace {

constexpr AdamCoefficients kCoefficients{.exp_avg_scale = 1.7f,
                                         .minus_learning_rate = -0.01f,
                                         .grad_scale = 1 / 3.0f};

class LocalStep : public test::KernelTest {
 protected:
  std::vector<float> values(std::uint32_t seed) const {
    return test::normal_and_special(size, seed);
  }

  template <class G, class L>
  void compare_steps(const std::vector<std::uint32_t>& mask, Signs mean,
                     bool from_zero, bool rounds) {
    compare(
        local_step, ref::local_step,
        [&](auto run, auto p, auto origin, auto m, auto u, auto d, auto grads,
            auto low) {
          run({.params = p.data(),
               .origin = origin.data(),
               .exp_avg = m.data(),
               .mean = mean,
               .accumulated = u.data(),
               .from_zero = from_zero,
               .denominator = d.data(),
               .grads = grads,
               .active = test::active(mask),
               .low_precision = rounds ? View(low) : View()},
              0.99f, kCoefficients);
        },
        values(1), values(2), values(3), values(4), test::positive(size, 5),
        test::rounded_to<G>(values(7)), std::vector<L>(size));
  }

  template <class G>
  void compare_forms() {
    const auto words = test::random_words(sign_words(size), 6);
    for (const auto& mask : test::masks(size))
      for (const bool from_zero : {false, true})
        for (const Signs mean :
             {Signs{}, Signs{words.data(), 0.3f}, Signs{words.data(), -0.3f}}) {
          compare_steps<G, Half>(mask, mean, from_zero, false);
          compare_steps<G, Half>(mask, mean, from_zero, true);
          compare_steps<G, BFloat16>(mask, mean, from_zero, true);
        }
  }

  template <class L>
  void compare_syncs(bool rounds) {
    const auto words = test::random_words(sign_words(size), 8);
    for (const auto& mask : test::masks(size))
      for (const float scale : {0.7f, -0.7f, 0.0f})
        compare(
            sync_update, ref::sync_update,
            [&](auto run, auto p, auto origin, auto d, auto low) {
              run({words.data(), scale}, test::active(mask),
                  {p.data(), origin.data(), d.data(), size,
                   rounds ? View(low) : View()},
                  0.99f);
            },
            values(1), values(2), test::positive(size, 5),
            std::vector<L>(size));
  }
};

TEST_P(LocalStep, EqualsReferenceBitForBit) {
  compare_forms<float>();
  compare_forms<Half>();
  compare_forms<BFloat16>();
}

TEST_P(LocalStep, SyncUpdateEqualsReferenceBitForBit) {
  compare_syncs<Half>(false);
  compare_syncs<Half>(true);
  compare_syncs<BFloat16>(true);
}

INSTANTIATE_TEST_SUITE_P(All, LocalStep, test::few_kernel_cases(),
                         test::case_name);

// ---- by hand; LocalStep.* and SignEncode.* show that all targets do the same

using Floats = std::vector<float>;

constexpr AdamCoefficients kExact{.beta1 = 0.5f,
                                  .one_minus_beta1 = 0.5f,
                                  .exp_avg_scale = 2,
                                  .minus_learning_rate = -0.5f,
                                  .grad_scale = 0.25f};

TEST(LocalStepValues, LocalStepByHand) {
  const Floats grads = {16, 8, 16};
  const Floats origin = {8, 8, 8};
  const Floats d = {1, 2, 4};
  const std::uint32_t active = 0b101;
  Floats p(3, 7.0f);
  Floats m = {2, 9, -12};
  Floats u = {10, 20, 30};
  LocalStepArrays arrays{.params = p.data(),
                         .origin = origin.data(),
                         .exp_avg = m.data(),
                         .accumulated = u.data(),
                         .denominator = d.data(),
                         .grads = grads,
                         .active = &active};
  // m = {1 + 2, masked, -6 + 2}, u - m / d, p = 8 / 4 + u
  ref::local_step(arrays, 0.25f, kExact);
  EXPECT_EQ(m, (Floats{3, 0, -4}));
  EXPECT_EQ(u, (Floats{7, 20, 31}));
  EXPECT_EQ(p, (Floats{9, 22, 33}));

  arrays.from_zero = true;
  const std::uint32_t bits = 0b001;
  arrays.mean = {&bits, -6};  // m = {-3 + 2, masked, 3 + 2}
  ref::local_step(arrays, 0.25f, kExact);
  EXPECT_EQ(m, (Floats{-1, 0, 5}));
  EXPECT_EQ(u, (Floats{1, 0, -1.25f}));
  EXPECT_EQ(p, (Floats{3, 2, 0.75f}));
}

TEST(LocalStepValues, OutputArraysAreNotRead) {
  const Floats grads(40, 4.0f);
  const Floats ones(40, 1.0f);
  const std::vector<std::uint32_t> bits(2, 0xffff'ffffu);
  Floats p(40, NAN), m(40, NAN), u(40, NAN);
  ref::local_step({.params = p.data(),
                   .origin = ones.data(),
                   .exp_avg = m.data(),
                   .mean = {bits.data(), 1},
                   .accumulated = u.data(),
                   .from_zero = true,
                   .denominator = ones.data(),
                   .grads = grads},
                  1, kExact);
  EXPECT_EQ(m, ones);
  EXPECT_EQ(u, Floats(40, -1.0f));
  EXPECT_EQ(p, Floats(40, 0.0f));
}

TEST(LocalStepValues, SyncUpdateByHand) {
  const std::uint32_t bits = 0b0011;
  const std::uint32_t active = 0b1110;
  const Floats d = {2, 2, 4, 8};
  Floats origin = {8, 16, 24, 32};
  Floats p(4, 7.0f);
  ref::sync_update({&bits, 4}, &active,
                   {p.data(), origin.data(), d.data(), 4, {}}, 0.5f);
  EXPECT_EQ(origin, (Floats{4, 8 + 2, 12 - 1, 16 - 0.5f}));
  EXPECT_EQ(p, origin);
}

// CastValues tests how stores round. b / d and m are 0.
TEST(LocalStepValues, LowPrecisionReceivesTheRoundedParameters) {
  const Floats values = {1 + 0x1p-11f, 1 + 3 * 0x1p-11f, -1 - 0x1p-8f, 65520};
  const Floats ones(4, 1.0f), zeros(4, 0.0f);
  const std::uint32_t bits = 0;
  const auto expect_rounded = [&]<class T>(std::vector<T> low) {
    const std::vector<T> want = test::rounded_to<T>(values);
    Floats p = zeros, m = zeros, u = zeros, origin = values;
    ref::local_step({.params = p.data(),
                     .origin = values.data(),
                     .exp_avg = m.data(),
                     .accumulated = u.data(),
                     .denominator = ones.data(),
                     .grads = zeros,
                     .low_precision = low},
                    1, kExact);
    EXPECT_EQ(p, values);
    EXPECT_TRUE(test::same_bits<T>(low, want));
    low.assign(4, {});
    ref::sync_update({&bits, 0}, nullptr,
                     {p.data(), origin.data(), ones.data(), 4, low}, 1);
    EXPECT_EQ(p, values);
    EXPECT_TRUE(test::same_bits<T>(low, want));
  };
  expect_rounded(std::vector<Half>(4));
  expect_rounded(std::vector<BFloat16>(4));
}

// m = {1 + 2, -2 + 1} = {3, -1}
TEST(LocalStepValues, MomentaAreScaledOrComputedFromUpdates) {
  const Floats grads = {16, 8};
  const Floats exp_avg = {2, -4};
  const Floats d = {2, 4};
  const Floats u = {10, 20};
  const auto encode = [&](const SignInput& input, Floats& error) {
    std::uint32_t word = 0;
    (void)ref::sign_encode(
        input, {.residual = error, .words = &word, .num_active = 2});
  };
  SignInput input{.grads = grads,
                  .exp_avg = exp_avg.data(),
                  .coefficients = &kExact,
                  .factor = -2};
  Floats error = {1, 1};
  encode(input, error);
  EXPECT_EQ(error, (Floats{-5, 3}));

  input.denominator = d.data();  // (0 - m / d) d, whatever the factor
  error = {1, 1};
  encode(input, error);
  EXPECT_EQ(error, (Floats{-2, 2}));

  input.accumulated = u.data();  // ({10, 20} - {1.5, -0.25}) {2, 4}
  error = {1, 1};
  encode(input, error);
  EXPECT_EQ(error, (Floats{18, 82}));

  const std::uint32_t bits = 0b10;  // exp_avg = {2, -2}: m = {3, 0}
  input.exp_avg = nullptr;
  input.mean = {&bits, -2};
  error = {1, 1};
  encode(input, error);
  EXPECT_EQ(error, (Floats{18, 81}));
}

TEST(LocalStepValues, WrongTypesAndSizesAreRefusedBeforeAnythingChanges) {
  const std::vector<double> doubles(2, 1.0);
  const Floats ones(2, 1.0f);
  Floats p = ones, m = ones, u = ones, origin = ones, floats = ones;
  std::vector<Half> halves(3);
  const std::uint32_t bits = 0;
  for (const auto run : {local_step, ref::local_step}) {
    const auto refused = [&](ConstView grads, View low) {
      EXPECT_THROW(run({.params = p.data(),
                        .origin = ones.data(),
                        .exp_avg = m.data(),
                        .accumulated = u.data(),
                        .denominator = ones.data(),
                        .grads = grads,
                        .low_precision = low},
                       1, kExact),
                   Error);
    };
    refused(doubles, {});
    for (const View low : {View(floats), View(halves)}) refused(ones, low);
  }
  for (const auto run : {sync_update, ref::sync_update})
    for (const View low : {View(floats), View(halves)})
      EXPECT_THROW(run({&bits, 1}, nullptr,
                       {p.data(), origin.data(), ones.data(), 2, low}, 1),
                   Error);
  for (const Floats& array : {p, m, u, origin}) EXPECT_EQ(array, ones);
}

}  // namespace
}  // namespace thinwire::kernels::local_step_test
