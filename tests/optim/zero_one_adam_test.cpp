// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/zero_one_adam.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "optim/low_bit/cases.h"
#include "optim/naive/drive.h"
#include "optim/naive/zero_one_adam.h"

namespace thinwire::optim::zero_one_adam_test {
namespace {

using test::Drive;

// Variance steps 1, 2, 4, 6, 1-bit steps 3 and 5; then local steps with syncs
// after 1, 2 and 4 of them.
ZeroOneAdamOptions short_run() {
  return {.learning_rate = 0.01,
          .var_freeze_step = 6,
          .var_update_scaler = 2,
          .local_step_scaler = 4,
          .local_step_clipper = 4};
}

class ZeroOneAdamWorlds : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, ZeroOneAdamWorlds,
                         ::testing::Values(1, 2, 3, 4, 8));

TEST_P(ZeroOneAdamWorlds, EqualsPlainLoops) {
  test::expect_plain_loops<test::naive::ZeroOneAdam>(
      {GetParam()}, test::awkward_layout(),
      {.steps = 18, .gradient = test::gradient_with_gaps}, short_run(),
      test::zero_one_adam);
}

struct Variant {
  const char* name;
  ZeroOneAdamOptions options;
  Drive run{.steps = 22, .gradient = test::gradient_with_gaps};
};

ZeroOneAdamOptions with_groups() {
  ZeroOneAdamOptions o = short_run();
  o.weight_decay = 0.1;
  return test::with_second_group(o);
}

ZeroOneAdamOptions with_masks() {
  return test::with_masks(with_groups(), test::grouped_layout());
}

// "dead" gets a gradient from one of the later variance steps on.
std::vector<float> late(const ParameterLayout& layout, std::int64_t t,
                        int rank) {
  return t <= 3 ? test::gradient_with_gaps(layout, t, rank)
                : test::gradient(layout.size(), t, rank);
}

// Elements of "dead" have their first gradient in local steps: one on a single
// rank, the other on all.
std::vector<float> late_in_local_steps(const ParameterLayout& layout,
                                       std::int64_t t, int rank) {
  auto values = test::gradient_with_gaps(layout, t, rank);
  const std::size_t dead = layout.parameter("dead").offset;
  if (t > 11 || (t == 11 && rank == 0)) values[dead + 1] = 0.5f;
  if (t >= 15) values[dead + 3] = -0.25f;
  return values;
}

// "dead" has a gradient in the first step only, "seven" in all but the last
// variance step, so with beta2 = 0 their variance is 0 again.
std::vector<float> gone(const ParameterLayout& layout, std::int64_t t,
                        int rank) {
  auto values = test::gradient(layout.size(), t, rank);
  for (const Parameter& p : layout.parameters())
    if ((p.name == "dead" && t > 1) || (p.name == "seven" && t == 6))
      std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(p.offset),
                  p.size, 0.0f);
  return values;
}

// Group 1 rests over whole intervals, later both do, then all goes on.
double rate_with_rests(std::int64_t t, std::size_t group) {
  if (t == 3 || (t >= 17 && t <= 19)) return 0;
  if (group == 1 && (t == 7 || (t >= 11 && t <= 14))) return 0;
  return 0.001 * static_cast<double>(t);
}

// Also between the local steps of one interval, whose decays are multiplied.
double decay_that_changes(std::int64_t t, std::size_t group) {
  return t % 3 == 0 ? 0 : 0.02 * static_cast<double>(t + 5 * group);
}

// On the last rank in local steps: the first after a sync, one in the middle,
// and two in a row; on rank 0 in a variance step, a 1-bit step and a sync.
std::vector<float> not_finite_at_times(const ParameterLayout& layout,
                                       std::int64_t t, int rank) {
  auto values = test::gradient_with_gaps(layout, t, rank);
  if (rank == 0 && (t == 1 || t == 4 || t == 9))
    values[3] = std::numeric_limits<float>::quiet_NaN();
  if (rank == 1 && (t == 14 || t == 16 || t == 20 || t == 21))
    values[7] = std::numeric_limits<float>::infinity();
  return values;
}

std::vector<Variant> variants() {
  const auto with = [](auto change) {
    ZeroOneAdamOptions o = short_run();
    change(o);
    return o;
  };
  const auto driven = [](auto gradient) {
    return Drive{.steps = 22, .gradient = gradient};
  };
  // Between steps of every kind; after a local step that one rank left out.
  const auto synchronizes = [](std::int64_t t) {
    return t == 5 || t == 6 || t == 8 || t == 13 || t == 14 || t == 17;
  };
  Drive not_finite_and_synchronizes = driven(not_finite_at_times);
  not_finite_and_synchronizes.synchronizes = synchronizes;
  const Drive rests{.steps = 24,
                    .gradient = test::gradient_with_gaps,
                    .learning_rate = rate_with_rests};
  Drive rests_and_synchronizes = rests;
  rests_and_synchronizes.synchronizes = synchronizes;
  ZeroOneAdamOptions masks_4_bits_bf16 = with_masks();
  masks_4_bits_bf16.warmup_bits = 4;
  masks_4_bits_bf16.compression.residual_dtype = DType::kBFloat16;
  masks_4_bits_bf16.compression.exchange.max_grad_norm = 0.5;
  return {
      {"eight_bits", with([](auto& o) { o.warmup_bits = 8; })},
      {"four_bits_late", with([](auto& o) { o.warmup_bits = 4; }),
       driven(late)},
      {"eight_bits_not_finite", with([](auto& o) { o.warmup_bits = 8; }),
       driven(not_finite_at_times)},
      {"masks_4_bits_bf16", masks_4_bits_bf16},
      {"decay", with([](auto& o) { o.weight_decay = 0.1; })},
      {"groups", with_groups()},
      {"masks", with_masks()},
      {"masks_clipped",
       [] {
         ZeroOneAdamOptions o = with_masks();
         o.compression.exchange.max_grad_norm = 0.5;
         return o;
       }()},
      {"clipped",
       with([](auto& o) { o.compression.exchange.max_grad_norm = 0.5; })},
      {"lagged", with([](auto& o) {
         o.compression.exchange.max_grad_norm = 0.5;
         o.compression.exchange.lagged_clipping = true;
       }),
       driven(not_finite_at_times)},
      {"no_correction", with([](auto& o) { o.bias_correction = false; })},
      {"eps_inside", with([](auto& o) {
         o.epsilon_inside_sqrt = true;
         o.epsilon = 1e-3;
       })},
      {"no_floor", with([](auto& o) { o.compression.denom_floor = 0; })},
      {"bf16",
       with([](auto& o) { o.compression.residual_dtype = DType::kBFloat16; })},
      {"small_buckets",
       with([](auto& o) { o.compression.exchange.bucket_elements = 40; })},
      {"threads",
       with([](auto& o) { o.compression.exchange.num_threads = 3; })},
      {"always_syncs", with([](auto& o) { o.local_step_clipper = 1; })},
      {"frozen_at_once", with([](auto& o) { o.var_freeze_step = 1; })},
      {"forgets_variance", with([](auto& o) { o.beta2 = 0; }), driven(late)},
      {"gone", with([](auto& o) { o.beta2 = 0; }), driven(gone)},
      {"late", short_run(), driven(late)},
      {"late_in_local_steps", with_groups(), driven(late_in_local_steps)},
      {"not_finite", short_run(), driven(not_finite_at_times)},
      {"not_finite_and_synchronizes", short_run(), not_finite_and_synchronizes},
      {"rests", with_groups(), rests},
      {"decay_changes",
       with_groups(),
       {.steps = 22,
        .gradient = test::gradient_with_gaps,
        .weight_decay = decay_that_changes}},
      {"synchronizes",
       with_groups(),
       {.steps = 22,
        .gradient = test::gradient_with_gaps,
        .synchronizes = synchronizes}},
      {"rests_and_synchronizes", with_masks(), rests_and_synchronizes}};
}

class ZeroOneAdamVariants
    : public ::testing::TestWithParam<std::tuple<int, Variant>> {};
INSTANTIATE_TEST_SUITE_P(All, ZeroOneAdamVariants,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::ValuesIn(variants())),
                         test::kNameAndWorld);

TEST_P(ZeroOneAdamVariants, EqualPlainLoops) {
  const auto& [world, variant] = GetParam();
  test::expect_plain_loops<test::naive::ZeroOneAdam>(
      {world}, test::grouped_layout(), variant.run, variant.options,
      test::zero_one_adam);
}

// ---- what is sent in each stage, and when ranks are equal

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

TEST(ZeroOneAdam, ExchangesNothingIfNothingMoved) {
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
}  // namespace thinwire::optim::zero_one_adam_test
