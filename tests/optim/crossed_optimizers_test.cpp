// SPDX-License-Identifier: Apache-2.0
// Ranks that take steps of two optimizers in another order.
#include <gtest/gtest.h>

#include "optim/support.h"
#include "support/errors.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::optim::crossed_optimizers_test {
namespace {

class CrossedOptimizers : public ::testing::TestWithParam<std::int64_t> {};
INSTANTIATE_TEST_SUITE_P(ExactAndCompressed, CrossedOptimizers,
                         ::testing::Values(0, 3));

// Alike in everything: only their order tells them apart.
TEST_P(CrossedOptimizers, AreNamedOnEveryRankAndNothingHasChanged) {
  const ParameterLayout layout = test::small_layout();
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    OnebitAdam one(comm, layout, {.freeze = {.step = 2}});
    OnebitAdam two(comm, layout, {.freeze = {.step = 2}});
    std::vector<float> params = test::normal(layout.size(), 3);
    std::vector<float> grads;
    for (std::int64_t t = 1; t <= GetParam(); ++t)
      for (OnebitAdam* optimizer : {&one, &two}) {
        grads = test::gradient(layout.size(), t, comm.rank());
        optimizer->step(params, grads);
      }
    const std::vector<float> before = params;
    grads = test::gradient(layout.size(), 9, comm.rank());
    OnebitAdam& first = comm.rank() == 1 ? two : one;
    test::expect_error(ErrorCode::kFailedPrecondition,
                       {"different optimizers", "same order"},
                       [&] { first.step(params, grads); });
    EXPECT_EQ(params, before);
    EXPECT_EQ(first.progress().steps, GetParam());
    // In the same order they go on.
    EXPECT_TRUE(one.step(params, grads).applied);
    EXPECT_TRUE(two.step(params, grads).applied);
  });
}

}  // namespace
}  // namespace thinwire::optim::crossed_optimizers_test
