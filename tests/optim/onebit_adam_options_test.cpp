// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "optim/low_bit/freeze/freeze.h"
#include "optim/support.h"
#include "support/errors.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::optim::onebit_adam_options_test {
namespace {

const ParameterLayout& layout() {
  static const ParameterLayout two_groups =
      ParameterLayout::of({{"a", {4}, 0}, {"b", {3}, 1}});
  return two_groups;
}

void refused(const OnebitAdamOptions& options, const char* name,
             const char* value) {
  test::expect_error(ErrorCode::kInvalidArgument, {name, value},
                     [&] { options.validate(layout()); });
}

TEST(OnebitAdamOptions, DefaultsAreValid) {
  EXPECT_NO_THROW(OnebitAdamOptions{}.validate(layout()));
  EXPECT_NO_THROW(
      OnebitAdamOptions{.freeze = {.step = kAutoFreeze}}.validate(layout()));
}

TEST(OnebitAdamOptions, OutOfRangeIsRefusedByName) {
  refused({.learning_rate = NAN}, "learning_rate", "nan");
  refused({.beta1 = 1}, "beta1", "got 1");
  refused({.epsilon = 0}, "epsilon", "got 0");
  refused({.groups = {{}}}, "groups", "1 entries");
  refused({.freeze = {.step = 0}}, "freeze_step", "got 0");
  refused({.freeze = {.step = -2}}, "freeze_step", "-2");
  refused({.freeze = {.lr_warmup_steps = -1}}, "lr_warmup_steps", "-1");
  refused({.freeze = {.total_steps = 0}}, "total_steps", "got 0");
  refused({.freeze = {.min_step = 0}}, "min_freeze_step", "got 0");
  refused({.freeze = {.max_step = 0}}, "max_freeze_step", "got 0");
  refused({.freeze = {.ratio = 1.5}}, "freeze_ratio", "1.5");
  refused({.compression = {.denom_floor = -0.1}}, "denom_floor", "-0.1");
  refused({.compression = {.residual_dtype = DType::kFloat16}},
          "residual_dtype", "float16");
  refused({.compression = {.exchange = {.max_grad_norm = INFINITY}}},
          "max_grad_norm", "inf");
  refused({.compression = {.exchange = {.num_threads = 5000}}}, "num_threads",
          "5000");
}

TEST(OnebitAdamOptions, MasksMustCoverTheirGroup) {
  OnebitAdamOptions options;
  options.groups.resize(2);
  options.groups[1].exp_avg_mask = {1, 0};
  refused(options, "groups[1].exp_avg_mask", "3 values");
  options.groups[1].exp_avg_mask = {1, 0, 1};
  EXPECT_NO_THROW(options.validate(layout()));
}

// The automatic freeze on a variance that is settled from the start fires as
// soon as it may.
std::int64_t earliest(const FreezeOptions& options) {
  AutoFreeze freeze(options);
  std::int64_t step = 1;
  while (!freeze.observe(1.0)) ++step;
  return step;
}

TEST(OnebitAdamOptions, TheAutomaticFreezeWaitsForTheWarmUp) {
  EXPECT_EQ(earliest({.total_steps = 9000}), 900);
  EXPECT_EQ(earliest({.lr_warmup_steps = 1500, .total_steps = 9000}), 1500);
  // A warm-up that ends early is no reason to freeze early.
  EXPECT_EQ(earliest({.lr_warmup_steps = 50, .total_steps = 9000}), 900);
  EXPECT_EQ(earliest({.lr_warmup_steps = 0}), 100);
  EXPECT_EQ(earliest({}), 100);
  EXPECT_EQ(earliest({.min_step = 70}), 70);
  EXPECT_EQ(earliest({.min_step = 30}),
            51);  // a window of 50 and one
  // A short run freezes at a fifth of its steps, whatever the least may be.
  EXPECT_EQ(earliest({.total_steps = 200}), 40);
}

TEST(OnebitAdamOptions, TheLatestFreezeIsNotBeforeTheEarliest) {
  EXPECT_EQ(earliest({.lr_warmup_steps = 500, .total_steps = 1000}), 500);
  EXPECT_EQ(earliest({.lr_warmup_steps = 500, .max_step = 20}), 500);
  EXPECT_EQ(earliest({.max_step = 20}), 100);
  EXPECT_EQ(earliest({.min_step = 10, .max_step = 20}), 20);
}

}  // namespace
}  // namespace thinwire::optim::onebit_adam_options_test
