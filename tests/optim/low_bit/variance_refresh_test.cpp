// SPDX-License-Identifier: Apache-2.0
// 1-bit Adam whose variance follows the gradient in every k-th compressed step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "optim/naive/drive.h"
#include "optim/naive/onebit_adam.h"
#include "optim/support.h"
#include "thinwire/exchange/block_layout.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::optim::variance_refresh_test {
namespace {

constexpr std::int64_t kFreeze = 3;
constexpr std::int64_t kRefresh = 2;

OnebitAdamOptions refreshing() {
  return {.learning_rate = 0.01,
          .beta2 = 0.9,
          .freeze_step = kFreeze,
          .variance_refresh = kRefresh};
}

class VarianceRefreshWorlds : public ::testing::TestWithParam<int> {};

// An element that is late, masks, two groups, bf16 residuals and any buckets.
TEST_P(VarianceRefreshWorlds, HasTheBitsOfPlainLoops) {
  OnebitAdamOptions plain = refreshing();
  plain.groups.resize(2);
  OnebitAdamOptions masks = test::with_second_group(refreshing());
  masks.variance_refresh = 3;
  masks.exchange.bucket_elements = 400;
  masks.groups[0].exp_avg_mask =
      test::every_third_masked(test::grouped_layout(), 0);
  OnebitAdamOptions small = plain;
  small.variance_refresh = 1;
  small.exchange = {.max_grad_norm = 5, .bucket_elements = 1, .num_threads = 3};
  small.residual_dtype = DType::kBFloat16;
  test::Drive run{.steps = 14};
  run.gradient = [](const ParameterLayout& layout, std::int64_t t, int rank) {
    auto g = test::gradient_with_gaps(layout, t, rank);
    const Parameter& dead = layout.parameter("dead");
    if (t >= 6 && rank == 0) g[dead.offset + 2] = 0.25f;
    return g;
  };
  const ParameterLayout layout = test::grouped_layout();
  for (const OnebitAdamOptions& o : {plain, masks, small})
    test::expect_same_run(
        GetParam(), layout, run,
        test::naive::OnebitAdam(GetParam(), layout, o,
                                test::normal(layout.size(), 3)),
        test::onebit_adam(o));
}

// On one rank the gradient is not rounded, so the whole run has a formula: v is
// corrected for its bias once, and decays for all the steps that it stood
// still.
TEST(VarianceRefresh, AGroupOfOneFollowsTheFormula) {
  const ParameterLayout layout = ParameterLayout::of({{"p", {1500}}});
  const std::size_t n = layout.size();
  const double lr = 0.01, beta1 = 0.9, beta2 = 0.99, eps = 1e-8;
  OnebitAdamOptions options = refreshing();
  options.beta2 = beta2;  // nearer to 0 some gradients would be bounded
  const auto got = test::train(1, layout, test::onebit_adam(options), 8)[0];

  std::vector<double> m(n), v(n), d(n), p(n);
  const auto start = test::normal(n, 3);
  for (std::size_t i = 0; i < n; ++i) p[i] = start[i];
  const auto floor_denominator = [&] {
    for (std::size_t begin = 0; begin < n; begin += 1024) {
      const std::size_t end = std::min(n, begin + 1024);
      double sum = 0;
      for (std::size_t i = begin; i < end; ++i) {
        d[i] = std::sqrt(v[i]) + eps;
        sum += d[i] * d[i];
      }
      const double least =
          0.3 * std::sqrt(sum / static_cast<double>(end - begin));
      for (std::size_t i = begin; i < end; ++i) d[i] = std::max(d[i], least);
    }
  };
  for (std::int64_t t = 1; t <= 8; ++t) {
    const auto g = test::gradient(n, t, 0);
    const bool refreshes = t > kFreeze && (t - kFreeze) % kRefresh == 0;
    const double c1 = 1 - std::pow(beta1, static_cast<double>(t));
    const double c2 = 1 - std::pow(beta2, static_cast<double>(t));
    const double decay = std::pow(beta2, static_cast<double>(kRefresh));
    for (std::size_t i = 0; i < n; ++i) {
      m[i] = beta1 * m[i] + (1 - beta1) * g[i];
      const double square = double{g[i]} * g[i];
      if (t <= kFreeze) v[i] = beta2 * v[i] + (1 - beta2) * square;
      if (t <= kFreeze) d[i] = std::sqrt(v[i] / c2) + eps;
      if (refreshes) v[i] = decay * v[i] + (1 - decay) * square;
    }
    if (refreshes) floor_denominator();
    for (std::size_t i = 0; i < n; ++i) p[i] -= lr * (m[i] / c1 / d[i]);
    if (t != kFreeze) continue;
    for (double& value : v) value /= c2;
    floor_denominator();
  }
  // Eight steps of fewer than 30 roundings each, of updates below 10 lr.
  for (std::size_t i = 0; i < n; ++i) ASSERT_NEAR(got[i], p[i], 3e-6) << i;
}

TEST_P(VarianceRefreshWorlds, LeavesTheSameBitsOnEveryRankWhateverTheBuckets) {
  OnebitAdamOptions options = refreshing();
  const auto params = test::train(GetParam(), test::small_layout(),
                                  test::onebit_adam(options), 9);
  for (const auto& other : params) EXPECT_EQ(other, params[0]);
  options.exchange = {.bucket_elements = 700, .num_threads = 3};
  EXPECT_EQ(test::train(GetParam(), test::small_layout(),
                        test::onebit_adam(options), 9)[0],
            params[0]);
}

// What the 4 bits take away joins the momentum's residuals: over a run the
// parameters stay near those of exact Adam, whose gradients here change slowly.
TEST_P(VarianceRefreshWorlds, StaysNearExactAdam) {
  const ParameterLayout layout = ParameterLayout::of({{"p", {40, 50}}});
  const AdamOptions adam{.learning_rate = 0.01, .beta2 = 0.9};
  const auto exact =
      test::train(GetParam(), layout, test::exact_adam(adam), 60)[0];
  const auto low =
      test::train(GetParam(), layout, test::onebit_adam(refreshing()), 60)[0];
  const auto start = test::normal(layout.size(), 3);
  double distance = 0, way = 0;
  for (std::size_t i = 0; i < low.size(); ++i) {
    distance += std::abs(low[i] - exact[i]);
    way += std::abs(exact[i] - start[i]);
  }
  EXPECT_LT(distance, 0.25 * way);
}

TEST_P(VarianceRefreshWorlds, ARefreshSendsFourBitsPerElement) {
  const int world = GetParam();
  const ParameterLayout layout = ParameterLayout::of({{"p", {64, 1024}}});
  const auto bytes_at = [&](int bits) {  // blocks are in balance
    const std::size_t records = 64 * exchange::record_bytes(1024, bits);
    return 2 * records * static_cast<std::size_t>(world - 1) /
               static_cast<std::size_t>(world) +
           16 * static_cast<std::size_t>(world - 1);
  };
  std::int64_t t = 0;
  test::train(world, layout, test::onebit_adam(refreshing()), 7,
              [&](Optimizer&, const StepReport& report) {
                if (++t <= kFreeze) return;
                const bool refreshes = (t - kFreeze) % kRefresh == 0;
                EXPECT_EQ(report.bytes_sent, bytes_at(refreshes ? 4 : 1)) << t;
              });
}

TEST_P(VarianceRefreshWorlds, ASavedRunContinuesBitEqual) {
  const ParameterLayout layout = test::small_layout();
  for (std::int64_t saved = kFreeze; saved <= 6; ++saved)
    comm::run_local_ranks(GetParam(), [&](comm::Communicator& comm) {
      OnebitAdam one(comm, layout, refreshing());
      std::vector<float> params = test::normal(layout.size(), 3), same;
      std::unique_ptr<OnebitAdam> two;
      for (std::int64_t t = 1; t <= 9; ++t) {
        auto grads = test::gradient(layout.size(), t, comm.rank());
        auto same_grads = grads;
        one.step(params, grads);
        if (two) {
          two->step(same, same_grads);
          ASSERT_EQ(params, same) << "saved after " << saved << ", step " << t;
        }
        if (t != saved) continue;
        two = std::make_unique<OnebitAdam>(comm, layout, refreshing());
        two->load_state_dict(one.state_dict());
        same = params;
      }
    });
}

INSTANTIATE_TEST_SUITE_P(All, VarianceRefreshWorlds,
                         ::testing::Values(1, 2, 4, 8));

}  // namespace
}  // namespace thinwire::optim::variance_refresh_test
