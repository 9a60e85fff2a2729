// SPDX-License-Identifier: Apache-2.0
// This file tests the exact parts of the compressed stage, and its clipping.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/support.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::optim::onebit_adam_stages_test {
namespace {

TEST(OnebitAdamStages, NonFreezeGroupsGoOnAsExactAdam) {
  const auto layout = ParameterLayout::of(
      {{"frozen", {700}, 0}, {"exact", {300}, 1}, {"more", {9}, 1}});
  OnebitAdamOptions options{.learning_rate = 0.01, .freeze = {.step = 2}};
  options.groups.resize(2);
  options.groups[1].non_freeze = true;
  for (const int world : {1, 3}) {
    const auto got = test::train(world, layout, test::onebit_adam(options), 8);
    const auto adam = test::train(
        world, layout,
        test::exact_adam({.learning_rate = 0.01, .groups = {{}, {}}}), 8);
    for (std::size_t r = 0; r < got.size(); ++r)
      for (std::size_t i = 700; i < layout.size(); ++i)
        ASSERT_EQ(got[r][i], adam[r][i]) << i;
  }
}

TEST(OnebitAdamStages, CompressedStepsClipByTheCalibratedNorm) {
  const ParameterLayout layout = test::small_layout();
  comm::run_local_ranks(3, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout,
                         {.freeze = {.step = 2},
                          .compression = {.exchange = {.max_grad_norm = 1}}});
    std::vector<float> params = test::normal(layout.size(), 3);
    double rho = 1;
    for (std::int64_t t = 1; t <= 5; ++t) {
      auto grads = test::gradient(layout.size(), t, comm.rank());
      double squares = 0;
      std::vector<double> mean(layout.size());
      for (int r = 0; r < 3; ++r) {
        const auto g = test::gradient(layout.size(), t, r);
        for (std::size_t i = 0; i < g.size(); ++i) {
          squares += double{g[i]} * g[i];
          mean[i] += double{g[i]} / 3;
        }
      }
      double mean_norm = 0;
      for (const double value : mean) mean_norm += value * value;
      mean_norm = std::sqrt(mean_norm);
      const double a = std::sqrt(squares / 3);
      const StepReport report = optimizer.step(params, grads);
      const bool exact = t <= 2;
      EXPECT_EQ(report.grad_norm_is_estimate, !exact);
      const double want = exact ? mean_norm : rho * a;
      EXPECT_NEAR(report.grad_norm, want, 1e-5 * want);
      EXPECT_NEAR(report.clip_factor, 1 / want, 1e-5 / want);
      if (exact) rho = t == 1 ? mean_norm / a : 0.9 * rho + 0.1 * mean_norm / a;
    }
  });
}

}  // namespace
}  // namespace thinwire::optim::onebit_adam_stages_test
