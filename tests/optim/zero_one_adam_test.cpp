// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/zero_one_adam.h"

#include <gtest/gtest.h>

#include "optim/naive_drive.h"
#include "optim/naive_zero_one.h"

namespace thinwire::optim {
namespace {

using test::Drive;

void expect_naive(int world, const ParameterLayout& layout,
                  const ZeroOneAdamOptions& options, const Drive& run) {
  test::expect_same_run(
      world, layout, run,
      test::naive::ZeroOneAdam(world, layout, options,
                               test::normal(layout.size(), 3)),
      test::zero_one_adam(options));
}

Drive with_gaps(std::int64_t steps) {
  Drive run{.steps = steps};
  run.gradient = test::gradient_with_gaps;
  return run;
}

class ZeroOneAdamWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, ZeroOneAdamWorlds,
                         ::testing::Values(1, 2, 3, 4, 8));

TEST_P(ZeroOneAdamWorlds, EqualsPlainLoops) {
  expect_naive(GetParam(), test::awkward_layout(),
               {.learning_rate = 0.01,
                .var_freeze_step = 6,
                .var_update_scaler = 2,
                .local_step_scaler = 4,
                .local_step_clipper = 4},
               with_gaps(22));
}

}  // namespace
}  // namespace thinwire::optim
