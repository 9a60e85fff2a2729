// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/local_step.h"

#include <gtest/gtest.h>

#include "support/kernel_cases.h"
#include "support/masks.h"
#include "support/values.h"

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

}  // namespace
}  // namespace thinwire::kernels::local_step_test
