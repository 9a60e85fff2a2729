// SPDX-License-Identifier: Apache-2.0
#include "thinwire/kernels/local_step.h"

#include <gtest/gtest.h>

#include "support/guarded.h"
#include "support/kernel_cases.h"
#include "support/masks.h"
#include "support/values.h"

namespace thinwire::kernels::local_step_test {
namespace {

using test::Guarded;

constexpr AdamCoefficients kCoefficients{.exp_avg_scale = 1.7f,
                                         .minus_learning_rate = -0.01f,
                                         .grad_scale = 1 / 3.0f};

/// What becomes of the low precision.
enum class Low { kNone, kHalf, kBFloat16 };
constexpr Low kLows[] = {Low::kNone, Low::kHalf, Low::kBFloat16};

/// The arrays of one block, to hand to one implementation.
struct Local {
  Local(std::size_t size, std::size_t skip)
      : params(test::normal_and_special(size, 1), skip),
        origin(test::normal_and_special(size, 2), skip),
        exp_avg(test::normal_and_special(size, 3), skip),
        accumulated(test::normal_and_special(size, 4), skip),
        denominator(test::positive(size, 5), skip),
        half(std::vector<Half>(size), skip),
        bfloat16(std::vector<BFloat16>(size), skip) {}

  View low_precision(Low low) {
    if (low == Low::kNone) return {};
    return low == Low::kHalf ? View(half.span()) : View(bfloat16.span());
  }
  LocalStepArrays step_arrays(Low low) {
    return {.params = params.data(),
            .origin = origin.data(),
            .exp_avg = exp_avg.data(),
            .accumulated = accumulated.data(),
            .denominator = denominator.data(),
            .low_precision = low_precision(low)};
  }
  SyncArrays sync_arrays(Low low) {
    return {.params = params.data(),
            .origin = origin.data(),
            .denominator = denominator.data(),
            .size = params.span().size(),
            .low_precision = low_precision(low)};
  }

  void expect_equals(Local& want) {
    EXPECT_TRUE(params.is(want.params.span())) << "params";
    EXPECT_TRUE(origin.is(want.origin.span())) << "origin";
    EXPECT_TRUE(exp_avg.is(want.exp_avg.span())) << "exp_avg";
    EXPECT_TRUE(accumulated.is(want.accumulated.span())) << "accumulated";
    EXPECT_TRUE(denominator.is(want.denominator.span())) << "denominator";
    EXPECT_TRUE(half.is(want.half.span())) << "fp16";
    EXPECT_TRUE(bfloat16.is(want.bfloat16.span())) << "bf16";
  }

  Guarded<float> params, origin, exp_avg, accumulated, denominator;
  Guarded<Half> half;
  Guarded<BFloat16> bfloat16;
};

class LocalStep : public test::KernelTest {
 protected:
  const Local start{size, skip};

  void compare(ConstView grads, Signs mean, bool from_zero, Low low) {
    for (const auto& mask : test::masks(size)) {
      Local got = start;
      Local want = start;
      const auto with = [&](LocalStepArrays arrays) {
        arrays.grads = grads;
        arrays.mean = mean;
        arrays.from_zero = from_zero;
        arrays.active = test::active(mask);
        return arrays;
      };
      local_step(with(got.step_arrays(low)), 0.99f, kCoefficients);
      ref::local_step(with(want.step_arrays(low)), 0.99f, kCoefficients);
      got.expect_equals(want);
    }
  }

  template <class G>
  void compare_forms() {
    const auto words = test::random_words(sign_words(size), 6);
    Guarded grads(test::rounded_to<G>(test::normal_and_special(size, 7)), skip);
    for (const Low low : kLows) {
      for (const bool from_zero : {false, true}) {
        compare(grads.span(), {}, from_zero, low);
        compare(grads.span(), {words.data(), 0.3f}, from_zero, low);
        compare(grads.span(), {words.data(), -0.3f}, from_zero, low);
      }
    }
  }
};

TEST_P(LocalStep, EqualsReferenceBitForBit) {
  compare_forms<float>();
  compare_forms<Half>();
  compare_forms<BFloat16>();
}

TEST_P(LocalStep, SyncUpdateEqualsReferenceBitForBit) {
  const auto words = test::random_words(sign_words(size), 8);
  for (const auto& mask : test::masks(size)) {
    for (const float scale : {0.7f, -0.7f, 0.0f}) {
      for (const Low low : kLows) {
        Local got = start;
        Local want = start;
        const Signs mean{words.data(), scale};
        sync_update(mean, test::active(mask), got.sync_arrays(low), 0.99f);
        ref::sync_update(mean, test::active(mask), want.sync_arrays(low),
                         0.99f);
        got.expect_equals(want);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, LocalStep, test::few_kernel_cases(),
                         test::case_name);

}  // namespace
}  // namespace thinwire::kernels::local_step_test
