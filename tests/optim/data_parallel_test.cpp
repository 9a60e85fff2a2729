// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/data_parallel.h"

#include <gtest/gtest.h>

#include <atomic>

#include "optim/support.h"
#include "support/environment.h"
#include "support/errors.h"

namespace thinwire::optim::data_parallel_test {
namespace {

class DataParallelWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, DataParallelWorlds,
                         ::testing::Values(1, 2, 3, 4, 8));

TEST_P(DataParallelWorlds, BitsDoNotDependOnBucketsOrThreads) {
  const ParameterLayout layout = test::small_layout();
  const auto run = [&](std::size_t bucket, int threads) {
    return test::train(GetParam(), layout,
                       test::exact_adam({}, {.max_grad_norm = 1,
                                             .bucket_elements = bucket,
                                             .num_threads = threads}),
                       3);
  };
  const auto want = run(1 << 20, 1);
  EXPECT_EQ(run(1, 1), want);
  EXPECT_EQ(run(1000, 3), want);
}

TEST(DataParallel, ClipsByTheNormOfTheMean) {
  const ParameterLayout layout = ParameterLayout::of({{"p", {2}}});
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    // Plain steps of lr * g / |g| are easiest to check with beta1 = beta2 = 0.
    const auto optimizer = test::exact_adam(
        {.learning_rate = 1, .beta1 = 0, .beta2 = 0, .bias_correction = false},
        {.max_grad_norm = 1})(comm, layout);
    std::vector<float> params = {0, 0};
    std::vector<float> grads =
        comm.rank() == 0 ? std::vector<float>{6, 0} : std::vector<float>{0, 8};
    const StepReport report = optimizer->step(params, grads);
    EXPECT_EQ(report.grad_norm, 5);  // of (3, 4)
    EXPECT_EQ(report.clip_factor, 0.2);
    const StateDict state = copy_of(optimizer->state());
    const auto m = state.array("exp_avg").as<float>();
    EXPECT_FLOAT_EQ(m[0], 0.6f);
    EXPECT_FLOAT_EQ(m[1], 0.8f);
  });
}

TEST(DataParallel, RefusesViewsThatDoNotFit) {
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    const auto layout = ParameterLayout::of({{"p", {2}}});
    const auto optimizer = test::exact_adam({})(comm, layout);
    std::vector<float> two(2), three(3);
    std::vector<double> doubles(2);
    test::expect_invalid({"grads", "2 elements", "of 3"},
                         [&] { optimizer->step(two, three); });
    test::expect_invalid({"params", "float32", "float64"},
                         [&] { optimizer->step(doubles, two); });
    test::expect_invalid({"max_grad_norm", "-1"}, [&] {
      test::exact_adam({}, {.max_grad_norm = -1})(comm, layout);
    });
  });
}

// Variables that an optimizer's loops go by are looked at when it is made, on
// every rank, and not in the middle of its first step.
TEST(Environment, IsRefusedOnEveryRankWhenAnOptimizerIsMade) {
  for (const char* variable : {"THINWIRE_PREFETCH", "THINWIRE_NUM_THREADS"})
    for (const auto& make : {test::exact_adam({}), test::onebit_adam({})}) {
      const test::ScopedVariable bad(variable, "fast");
      std::atomic<int> refusals = 0;
      comm::run_local_ranks(3, [&](comm::Communicator& comm) {
        test::expect_invalid({variable, "'fast'"}, [&] {
          const auto made = make(comm, test::small_layout());
        });
        ++refusals;
      });
      EXPECT_EQ(refusals, 3);
    }
}

}  // namespace
}  // namespace thinwire::optim::data_parallel_test
