// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/adam.h"

#include <gtest/gtest.h>

#include "kernels/adam_model.h"
#include "support/guarded.h"
#include "support/kernel_cases.h"
#include "support/values.h"

namespace thinwire::kernels::adam_test {
namespace {

using test::Guarded;

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

  template <class G, class Got, class Want>
  void compare_stores(Got got, Want want) {
    compare<G, Half>(false, got, want);
    compare<G, Half>(true, got, want);
    compare<G, BFloat16>(true, got, want);
  }
};

TEST_P(AdamKernels, AdamEqualsReferenceBitForBit) {
  const auto got = [](auto& model, const auto& c) {
    adam(model.adam_arrays(), c);
  };
  const auto want = [](auto& model, const auto& c) {
    ref::adam(model.adam_arrays(), c);
  };
  compare_stores<float>(got, want);
  compare_stores<Half>(got, want);
  compare_stores<BFloat16>(got, want);
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

TEST_P(AdamKernels, MomentsEqualReferenceBitForBit) {
  const AdamCoefficients c{.l2_decay = 1, .grad_scale = 1 / 3.0f};
  const auto compare_moments = [&](auto got, auto want) {
    moments(got.exp_avg.data(), got.exp_avg_sq.data(), got.grads.span(), c);
    ref::moments(want.exp_avg.data(), want.exp_avg_sq.data(), want.grads.span(),
                 c);
    got.expect_equals(want);
  };
  compare_moments(Model<float, Half>(size, skip, false),
                  Model<float, Half>(size, 0, false));
  compare_moments(Model<Half, Half>(size, skip, false),
                  Model<Half, Half>(size, 0, false));
  compare_moments(Model<BFloat16, Half>(size, skip, false),
                  Model<BFloat16, Half>(size, 0, false));
}

TEST_P(AdamKernels, FrozenUpdateEqualsReferenceBitForBit) {
  const auto got = [](auto& model, const auto& c) {
    frozen_update(model.frozen_arrays(), c);
  };
  const auto want = [](auto& model, const auto& c) {
    ref::frozen_update(model.frozen_arrays(), c);
  };
  compare_stores<float>(got, want);
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
}  // namespace thinwire::kernels::adam_test
