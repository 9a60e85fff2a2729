// SPDX-License-Identifier: Apache-2.0
// The compressed stage against formulas in double.
#include <gtest/gtest.h>

#include <cmath>

#include "optim/support.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::optim::onebit_adam_stages_test {
namespace {

// On one rank nothing is compressed, so the whole step has a formula: momentum
// goes on, the denominator is that of the freeze, with its floor.
TEST(OnebitAdamStages, AGroupOfOneFollowsTheFrozenFormula) {
  const ParameterLayout layout = ParameterLayout::of({{"p", {1500}}});
  const std::size_t n = layout.size();
  constexpr std::int64_t kFreeze = 4;
  const double lr = 0.01, beta1 = 0.9, beta2 = 0.99, eps = 1e-8, wd = 0.1;
  const auto got = test::train(1, layout,
                               test::onebit_adam({.learning_rate = lr,
                                                  .beta2 = beta2,
                                                  .weight_decay = wd,
                                                  .freeze = {.step = kFreeze}}),
                               9)[0];

  std::vector<double> m(n), v(n), d(n), p(n);
  const auto start = test::normal(n, 3);
  for (std::size_t i = 0; i < n; ++i) p[i] = start[i];
  for (std::int64_t t = 1; t <= 9; ++t) {
    const auto g = test::gradient(n, t, 0);
    const double c1 = 1 - std::pow(beta1, static_cast<double>(t));
    const double c2 = 1 - std::pow(beta2, static_cast<double>(t));
    for (std::size_t i = 0; i < n; ++i) {
      m[i] = beta1 * m[i] + (1 - beta1) * g[i];
      if (t <= kFreeze) {
        v[i] = beta2 * v[i] + (1 - beta2) * double{g[i]} * g[i];
        d[i] = std::sqrt(v[i] / c2) + eps;
      }
      p[i] -= lr * (m[i] / c1 / d[i] + wd * p[i]);
    }
    if (t != kFreeze) continue;
    for (std::size_t begin = 0; begin < n; begin += 1024) {
      const std::size_t end = std::min(n, begin + 1024);
      double sum = 0;
      for (std::size_t i = begin; i < end; ++i) sum += d[i] * d[i];
      const double floor =
          0.3 * std::sqrt(sum / static_cast<double>(end - begin));
      for (std::size_t i = begin; i < end; ++i) d[i] = std::max(d[i], floor);
    }
  }
  // Nine steps of fewer than 20 roundings each, of updates below 10 lr.
  for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(got[i], p[i], 2e-6) << i;
}

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

class Masks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, Masks, ::testing::Values(1, 2, 4));

TEST_P(Masks, OnlyWhatTheCallerMaskedNeverMovesOnceFrozen) {
  const ParameterLayout layout = ParameterLayout::of({{"p", {1200}}});
  OnebitAdamOptions options{.learning_rate = 0.01, .freeze = {.step = 3}};
  options.groups.resize(1);
  options.groups[0].exp_avg_mask.assign(1200, 1.0f);
  for (std::size_t i = 0; i < 1200; i += 4)
    options.groups[0].exp_avg_mask[i] = 0;
  // Their first gradient comes two steps after the freeze.
  const auto late = [](std::size_t i) { return i >= 600 && i < 650; };
  comm::run_local_ranks(GetParam(), [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout, options);
    std::vector<float> params = test::normal(1200, 3);
    std::vector<float> at_freeze;
    for (std::int64_t t = 1; t <= 8; ++t) {
      auto grads = test::gradient(1200, t, comm.rank());
      for (std::size_t i = 0; i < grads.size(); ++i)
        if (late(i) && t <= 5) grads[i] = 0;
      optimizer.step(params, grads);
      if (t == 3) at_freeze = params;
      if (t != 5) continue;
      for (std::size_t i = 600; i < 650; ++i)
        ASSERT_EQ(params[i], at_freeze[i]) << i;
    }
    for (std::size_t i = 0; i < params.size(); ++i)
      ASSERT_EQ(params[i] == at_freeze[i], i % 4 == 0) << i;
    // exp_avg of a masked coordinate is 0, and so is its residual.
    const StateDict state = copy_of(optimizer.state());
    EXPECT_EQ(state.array("exp_avg").as<float>()[4], 0.0f);
    if (comm.size() > 1) {
      EXPECT_EQ(state.array("worker_error").as<float>()[4], 0.0f);
    }
  });
}

TEST(OnebitAdamStages, TheFloorKeepsUpdatesSmall) {
  // One coordinate has rounding noise for a gradient.
  const ParameterLayout layout = ParameterLayout::of({{"p", {512}}});
  const auto largest_move = [&](double floor) {
    double largest = 0;
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      OnebitAdam optimizer(comm, layout,
                           {.learning_rate = 1,
                            .freeze = {.step = 2},
                            .compression = {.denom_floor = floor}});
      std::vector<float> params(512);
      for (std::int64_t t = 1; t <= 3; ++t) {
        auto grads = test::gradient(512, t, comm.rank());
        grads[5] *= 1e-7f;
        const std::vector<float> before = params;
        optimizer.step(params, grads);
        if (t == 3 && comm.rank() == 0)
          largest = std::abs(double{params[5]} - before[5]);
      }
    });
    return largest;
  };
  EXPECT_LT(largest_move(0.3), 20);
  EXPECT_GT(largest_move(0), 1e4);
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
