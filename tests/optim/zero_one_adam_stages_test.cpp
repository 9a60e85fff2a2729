// SPDX-License-Identifier: Apache-2.0
// What 0/1 Adam sends when, where ranks are equal, and what is left of it
// without compression: Adam.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "optim/low_bit/cases.h"
#include "optim/naive/drive.h"

namespace thinwire::optim::zero_one_adam_stages_test {
namespace {

struct Seen {
  StepReport report;
  Phase next = Phase::kExact;
  std::vector<float> params;
};

std::vector<std::vector<Seen>> seen_in(int world, const ParameterLayout& layout,
                                       const test::Drive& run,
                                       const ZeroOneAdamOptions& options) {
  return test::drive<Seen>(
      world, layout, run, test::zero_one_adam(options),
      [](Optimizer& optimizer, const StepReport& report,
         const std::vector<float>& params) {
        return Seen{report, optimizer.progress().phase, params};
      });
}

class ZeroOneAdamStages : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, ZeroOneAdamStages, ::testing::Values(2, 3, 4, 8));

TEST_P(ZeroOneAdamStages, FollowTheSchedule) {
  const auto seen = seen_in(GetParam(), test::grouped_layout(), {.steps = 24},
                            test::short_zero_one_adam());
  // v: variance step, 1: one bit, l: local. 2 variance steps at interval 1, 2
  // at 2; after the freeze 4 steps at interval 1, 4 at 2, then 4.
  const std::string want = "vv1v1v1111l1l1l1lll1lll1";
  std::string got;
  for (std::size_t t = 0; t < seen.size(); ++t) {
    const Seen& first = seen[t][0];
    const Phase phase = first.report.phase;
    got += phase == Phase::kExact ? 'v' : phase == Phase::kLocal ? 'l' : '1';
    if (t > 0) {
      EXPECT_EQ(seen[t - 1][0].next, phase) << t + 1;
    }
    for (const Seen& rank : seen[t]) {
      EXPECT_EQ(rank.report.phase, phase);
      const bool local = phase == Phase::kLocal;
      EXPECT_EQ(rank.report.bytes_sent == 0, local) << t + 1;
      EXPECT_EQ(rank.report.collectives == 0, local) << t + 1;
      // Equal whenever something was exchanged; else every rank is elsewhere.
      if (&rank != &first) {
        EXPECT_EQ(rank.params == first.params, !local) << t + 1;
      }
    }
  }
  EXPECT_EQ(got, want);
}

TEST_P(ZeroOneAdamStages, SynchronizeMakesEqualAndThenSendsNothing) {
  const ParameterLayout layout = test::grouped_layout();
  std::vector<std::vector<float>> equal(24 * 8);
  comm::run_local_ranks(GetParam(), [&](comm::Communicator& comm) {
    ZeroOneAdam optimizer(comm, layout, test::short_zero_one_adam());
    std::vector<float> params = test::normal(layout.size(), 3);
    for (std::int64_t t = 1; t <= 24; ++t) {
      auto grads = test::gradient(layout.size(), t, comm.rank());
      const Phase phase = optimizer.step(params, grads).phase;
      const auto before = comm.counters().bytes_sent;
      optim::synchronize(optimizer, params);
      const auto after = comm.counters().bytes_sent;
      EXPECT_EQ(after > before, phase == Phase::kLocal) << t;
      optim::synchronize(optimizer, params);
      EXPECT_EQ(comm.counters().bytes_sent, after) << t;
      equal[static_cast<std::size_t>((t - 1) * 8 + comm.rank())] = params;
    }
  });
  for (std::size_t t = 0; t < 24; ++t)
    for (int r = 1; r < GetParam(); ++r)
      ASSERT_EQ(equal[t * 8 + static_cast<std::size_t>(r)], equal[t * 8])
          << "step " << t + 1;
}

TEST(ZeroOneAdam, ExchangesNothingWhereNothingMoved) {
  test::Drive run{.steps = 24};
  run.learning_rate = [](std::int64_t t, std::size_t) {
    return t > 6 ? 0 : 0.01;
  };
  const auto seen =
      seen_in(2, test::grouped_layout(), run, test::short_zero_one_adam());
  for (std::size_t t = 6; t < seen.size(); ++t) {
    EXPECT_LE(seen[t][0].report.bytes_sent, 16u) << "the scalar of a sync";
    EXPECT_EQ(seen[t][0].params, seen[5][0].params);
    EXPECT_EQ(seen[t][1].params, seen[5][0].params);
  }
}

TEST(ZeroOneAdam, BitsDoNotDependOnBucketsOrThreads) {
  const ParameterLayout layout = test::small_layout();
  const auto run = [&](std::size_t bucket, int threads) {
    ZeroOneAdamOptions options = test::short_zero_one_adam();
    options.groups.clear();
    options.compression.exchange.bucket_elements = bucket;
    options.compression.exchange.num_threads = threads;
    return test::train(3, layout, test::zero_one_adam(options), 18);
  };
  const auto want = run(1 << 20, 1);
  EXPECT_EQ(run(1, 1), want);
  EXPECT_EQ(run(1100, 3), want);
}

// Without compression (one rank), without a floor, with a variance step in
// every step before the freeze and a sync in every one after it.
class WithoutCompression : public ::testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Decay, WithoutCompression,
                         ::testing::Values(0.0, 0.1));

TEST_P(WithoutCompression, IsAdamAndThenAdamWithAFrozenVariance) {
  constexpr std::int64_t kFreeze = 5;
  constexpr std::int64_t kSteps = 25;
  constexpr double kEps = 0x1p-24;  // a rounding, relative to its result
  const double lr = 0.01;
  const double beta1 = 0.9;
  const double decay = GetParam();
  const ParameterLayout layout = test::small_layout();
  comm::run_local_ranks(1, [&](comm::Communicator& comm) {
    ZeroOneAdam optimizer(comm, layout,
                          {.learning_rate = lr,
                           .weight_decay = decay,
                           .var_freeze_step = kFreeze,
                           .var_update_scaler = 1 << 30,
                           .local_step_clipper = 1,
                           .compression = {.denom_floor = 0}});
    const auto adam = test::exact_adam(
        {.learning_rate = lr, .weight_decay = decay})(comm, layout);
    std::vector<float> params = test::normal(layout.size(), 3);
    std::vector<float> exact = params;
    for (std::int64_t t = 1; t <= kFreeze; ++t) {
      auto grads = test::gradient(layout.size(), t, 0);
      auto same = grads;
      EXPECT_EQ(optimizer.step(params, grads).phase, Phase::kExact);
      adam->step(exact, same);
      ASSERT_EQ(params, exact) << "step " << t;
    }
    const StateDict state = copy_of(adam->state());
    const auto m0 = state.array("exp_avg").as<float>();
    const auto v = state.array("exp_avg_sq").as<float>();
    std::vector<double> m(m0.begin(), m0.end());
    std::vector<double> p(exact.begin(), exact.end());
    // The sync takes m back from lr m / d: with its own update at most 10
    // roundings of m a step, which fade as m does. A step of p has 8 more, of
    // terms no larger than |p| + |step|; and p follows m.
    std::vector<double> m_error(m.size());
    std::vector<double> p_error(m.size());
    const double v_correction = 1 - std::pow(0.999, kFreeze);
    for (std::int64_t t = kFreeze + 1; t <= kSteps; ++t) {
      auto grads = test::gradient(layout.size(), t, 0);
      const auto g = grads;
      EXPECT_EQ(optimizer.step(params, grads).phase, Phase::kCompressed);
      const double m_correction = 1 - std::pow(beta1, static_cast<double>(t));
      for (std::size_t i = 0; i < m.size(); ++i) {
        const double d = std::sqrt(v[i] / v_correction) + 1e-8;
        const double size = beta1 * std::abs(m[i]) + 0.1 * std::abs(g[i]);
        m[i] = beta1 * m[i] + (1 - beta1) * g[i];
        m_error[i] = beta1 * m_error[i] + 10 * kEps * size;
        const double step = lr * m[i] / m_correction / d;
        p_error[i] += lr * m_error[i] / m_correction / d +
                      8 * kEps * (std::abs(p[i]) + std::abs(step));
        p[i] -= step + lr * decay * p[i];
        ASSERT_NEAR(params[i], p[i], p_error[i]) << "step " << t;
      }
    }
  });
}

}  // namespace
}  // namespace thinwire::optim::zero_one_adam_stages_test
