// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/onebit_lamb.h"

#include <gtest/gtest.h>

#include "optim/naive_drive.h"
#include "optim/naive_lamb.h"

namespace thinwire::optim {
namespace {

using test::Drive;

void expect_naive(int world, const ParameterLayout& layout,
                  const OnebitLambOptions& options, const Drive& run) {
  test::expect_same_run(world, layout, run,
                        test::naive::OnebitLamb(world, layout, options,
                                                test::normal(layout.size(), 3)),
                        test::onebit_lamb(options));
}

Drive with_gaps(std::int64_t steps) {
  Drive run{.steps = steps};
  run.gradient = test::gradient_with_gaps;
  return run;
}

class OnebitLambWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, OnebitLambWorlds,
                         ::testing::Values(1, 2, 3, 4, 8));

TEST_P(OnebitLambWorlds, EqualsPlainLoops) {
  expect_naive(GetParam(), test::awkward_layout(),
               {.learning_rate = 0.01, .freeze_step = 3}, with_gaps(8));
}

}  // namespace
}  // namespace thinwire::optim
