// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/adam.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/guarded.h"
#include "support/kernel_cases.h"
#include "support/values.h"

namespace thinwire::kernels {
namespace {

using test::Guarded;

std::vector<AdamCoefficients> coefficient_cases() {
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
  Model(std::size_t size, std::size_t skip, bool rounds)
      : params(test::normal_and_special(size, 1), skip),
        exp_avg(test::normal_and_special(size, 2), skip),
        exp_avg_sq(test::normal_and_special(size, 3), skip),
        denominator(test::positive(size, 4), skip),
        grads(test::rounded_to<G>(test::normal_and_special(size, 5)), skip),
        low_precision(std::vector<L>(size), skip),
        has_low_precision(rounds) {
    for (float& v : exp_avg_sq.span()) v = std::abs(v);
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

  Guarded<float> params, exp_avg, exp_avg_sq, denominator;
  Guarded<G> grads;
  Guarded<L> low_precision;
  bool has_low_precision;
};

class AdamKernels : public test::KernelTest {
 protected:
  /// Runs two Models through `got` and `want` and compares all they hold.
  template <class G, class L, class Got, class Want>
  void compare(bool rounds, Got got, Want want) {
    const std::vector<AdamCoefficients> cases = coefficient_cases();
    for (std::size_t i = 0; i < cases.size(); ++i) {
      SCOPED_TRACE("coefficients " + std::to_string(i));
      Model<G, L> mine(size, skip, rounds);
      Model<G, L> reference(size, 0, rounds);
      got(mine, cases[i]);
      want(reference, cases[i]);
      mine.expect_equals(reference);
    }
  }
};

TEST_P(AdamKernels, AdamEqualsReferenceBitForBit) {
  const auto got = [](auto& model, const auto& c) {
    adam(model.adam_arrays(), c);
  };
  const auto want = [](auto& model, const auto& c) {
    ref::adam(model.adam_arrays(), c);
  };
  compare<float, Half>(false, got, want);
  compare<float, Half>(true, got, want);
  compare<float, BFloat16>(true, got, want);
  compare<Half, Half>(false, got, want);
  compare<Half, Half>(true, got, want);
  compare<Half, BFloat16>(true, got, want);
  compare<BFloat16, Half>(false, got, want);
  compare<BFloat16, Half>(true, got, want);
  compare<BFloat16, BFloat16>(true, got, want);
}

TEST_P(AdamKernels, MomentumEqualsReferenceBitForBit) {
  const auto got = [](auto& model, const auto& c) {
    momentum(model.exp_avg.data(), model.grads.span(), c);
  };
  const auto want = [](auto& model, const auto& c) {
    ref::momentum(model.exp_avg.data(), model.grads.span(), c);
  };
  compare<float, Half>(false, got, want);
  compare<Half, Half>(false, got, want);
  compare<BFloat16, Half>(false, got, want);
}

TEST_P(AdamKernels, FrozenUpdateEqualsReferenceBitForBit) {
  const auto got = [](auto& model, const auto& c) {
    frozen_update(model.frozen_arrays(), c);
  };
  const auto want = [](auto& model, const auto& c) {
    ref::frozen_update(model.frozen_arrays(), c);
  };
  compare<float, Half>(false, got, want);
  compare<float, Half>(true, got, want);
  compare<float, BFloat16>(true, got, want);
}

TEST_P(AdamKernels, DenominatorEqualsReferenceBitForBitAlsoInPlace) {
  const auto got = [this](auto& model, const auto& c) {
    float* const v = model.exp_avg_sq.data();
    denominator(v, model.denominator.data(), size, c);
    denominator(v, v, size, c);
  };
  const auto want = [this](auto& model, const auto& c) {
    float* const v = model.exp_avg_sq.data();
    ref::denominator(v, model.denominator.data(), size, c);
    ref::denominator(v, v, size, c);
  };
  compare<float, Half>(false, got, want);
}

INSTANTIATE_TEST_SUITE_P(All, AdamKernels, test::kernel_cases(),
                         test::case_name);

}  // namespace
}  // namespace thinwire::kernels
