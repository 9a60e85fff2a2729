// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "support/guarded.h"
#include "support/values.h"
#include "thinwire/kernels/adam.h"

/// What the tests of kernels that take AdamArrays share.
namespace thinwire::kernels {

inline std::vector<AdamCoefficients> coefficient_cases() {
  const AdamCoefficients base{.exp_avg_scale = 1 / 0.3f,
                              .exp_avg_sq_scale = 1 / 0.007f,
                              .minus_learning_rate = -0.01f,
                              .grad_scale = 1 / 3.0f};
  std::vector<AdamCoefficients> cases(6, base);
  cases[1].epsilon_inside_sqrt = true;
  cases[2].l2_decay = 0.1f;
  cases[3].decoupled_decay = 0.1f;
  cases[4] = AdamCoefficients{.grad_scale = 1024};
  cases[5].epsilon = 0;  // 0 / 0 where v is 0
  cases[5].l2_decay = 1e-3f;
  cases[5].decoupled_decay = 1e-2f;
  return cases;
}

/// One model's arrays, to hand to one implementation.
template <class G, class L>
struct Model {
  Model(std::size_t size, std::size_t skip, bool rounds, bool special = true)
      : params(values(size, 1, special), skip),
        exp_avg(values(size, 2, special), skip),
        exp_avg_sq(values(size, 3, special), skip),
        denominator(test::positive(size, 4), skip),
        grads(test::rounded_to<G>(values(size, 5, special)), skip),
        low_precision(std::vector<L>(size), skip),
        has_low_precision(rounds) {
    for (float& v : exp_avg_sq.span()) v = std::abs(v);
  }

  static std::vector<float> values(std::size_t size, std::uint32_t seed,
                                   bool special) {
    return special ? test::normal_and_special(size, seed)
                   : test::normal(size, seed);
  }

  View low() { return has_low_precision ? View(low_precision.span()) : View(); }
  AdamArrays adam_arrays() {
    return {.params = params.data(),
            .exp_avg = exp_avg.data(),
            .exp_avg_sq = exp_avg_sq.data(),
            .grads = grads.span(),
            .low_precision = low()};
  }
  FrozenUpdateArrays frozen_arrays() {
    return {.params = params.data(),
            .exp_avg = exp_avg.data(),
            .denominator = denominator.data(),
            .low_precision = low(),
            .size = params.span().size()};
  }

  void expect_equals(Model& want) {
    EXPECT_TRUE(params.is(want.params.span())) << "params";
    EXPECT_TRUE(exp_avg.is(want.exp_avg.span())) << "exp_avg";
    EXPECT_TRUE(exp_avg_sq.is(want.exp_avg_sq.span())) << "exp_avg_sq";
    EXPECT_TRUE(denominator.is(want.denominator.span())) << "denominator";
    EXPECT_TRUE(grads.is(want.grads.span())) << "grads";
    EXPECT_TRUE(low_precision.is(want.low_precision.span())) << "low_precision";
  }

  test::Guarded<float> params, exp_avg, exp_avg_sq, denominator;
  test::Guarded<G> grads;
  test::Guarded<L> low_precision;
  bool has_low_precision;
};

}  // namespace thinwire::kernels
