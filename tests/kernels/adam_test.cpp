// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/adam.h"

#include <gtest/gtest.h>

#include "kernels/adam_model.h"
#include "support/kernel_cases.h"
#include "support/values.h"

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

}  // namespace
}  // namespace thinwire::kernels::adam_test
