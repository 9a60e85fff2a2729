// SPDX-License-Identifier: Apache-2.0
// This file tests what 0/1 Adam sends in each stage, and when ranks are equal.
#include <gtest/gtest.h>

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
      {world}, layout, run, test::zero_one_adam(options),
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

}  // namespace
}  // namespace thinwire::optim::zero_one_adam_stages_test
