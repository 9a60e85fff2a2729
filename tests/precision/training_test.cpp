// SPDX-License-Identifier: Apache-2.0
// What a training in 16 bits hands on to and from the optimizer inside.
#include <gtest/gtest.h>

#include "precision/support.h"

namespace thinwire::precision::training_test {
namespace {

using test::Training;

constexpr std::size_t kSize = 600;

const ParameterLayout kLayout =
    ParameterLayout::of({{"a", {256}}, {"b", {300}}, {"c", {44}}});

TEST(MixedPrecision, HandsWeightDecayOnAndReportsEqualGradients) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    const auto grads = test::normal(kSize, 5);
    const auto trained = [&](double option, double set) {
      Training run(
          comm, kLayout,
          test::onebit_adam({.weight_decay = option, .freeze = {.step = 1}}),
          {.dtype = DType::kBFloat16});
      EXPECT_EQ(run.optimizer->groups().weight_decay(0), option);
      run.optimizer->groups().set_weight_decay(0, set);
      EXPECT_EQ(run.optimizer->groups().weight_decay(0), set);
      for (int t = 1; t <= 3; ++t)
        EXPECT_EQ(run.step(grads).gradients_equal, t <= 2);
      const auto masters = run.optimizer->masters().as<float>();
      return std::vector<float>(masters.begin(), masters.end());
    };
    const auto want = trained(0.3, 0.3);
    EXPECT_NE(trained(0.1, 0.1), want);
    EXPECT_EQ(trained(0.1, 0.3), want);
  });
}

}  // namespace
}  // namespace thinwire::precision::training_test
