// SPDX-License-Identifier: Apache-2.0
// Elements whose first gradient comes after the freeze. Their steps are held
// equal to plain loops in onebit_adam_plain_test.cpp, and with gradients of 16
// bits in by_host_test.cpp.
#include <gtest/gtest.h>

#include <limits>

#include "optim/low_bit/late_cases.h"
#include "optim/states.h"

namespace thinwire::optim::late_elements_test {
namespace {

using test::kFirstLate;
using test::kLateFreeze;

struct Case {
  std::string name;
  test::MakeOptimizer make;
};

std::vector<Case> two_stage_cases() {
  const OnebitAdamOptions adam{.learning_rate = 0.01,
                               .freeze = {.step = kLateFreeze}};
  OnebitAdamOptions bf16 = adam;
  bf16.compression.residual_dtype = DType::kBFloat16;
  const OnebitLambOptions lamb{.learning_rate = 0.01,
                               .freeze = {.step = kLateFreeze}};
  return {{"onebit_adam", test::onebit_adam(adam)},
          {"onebit_adam_bf16", test::onebit_adam(bf16)},
          {"onebit_lamb", test::onebit_lamb(lamb)}};
}

class LateElements : public ::testing::TestWithParam<std::tuple<int, Case>> {};
INSTANTIATE_TEST_SUITE_P(
    All, LateElements,
    ::testing::Combine(::testing::Values(1, 2, 3, 4),
                       ::testing::ValuesIn(two_stage_cases())),
    test::kNameAndWorld);

TEST_P(LateElements, CostNothingBesideTheirStep) {
  const auto& [world, tested] = GetParam();
  const ParameterLayout layout = test::late_layout();
  comm::run_local_ranks(world, [&, &test_case = tested](auto& comm) {
    const auto optimizer = test_case.make(comm, layout);
    std::vector<float> params = test::normal(layout.size(), 3);
    std::uint64_t bytes = 0;
    for (std::int64_t t = 1; t <= kFirstLate + 4; ++t) {
      auto grads = test::late_gradient(layout, t, comm.rank());
      const StepReport report = optimizer->step(params, grads);
      if (t == kLateFreeze + 1) bytes = report.bytes_sent;
      if (t > kLateFreeze && t != kFirstLate && t != kFirstLate + 1) {
        EXPECT_EQ(report.bytes_sent, bytes) << t;
      }
    }
  });
}

class MaskedForEver : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(All, MaskedForEver, ::testing::Values(1, 2, 3, 4));

template <class Options>
Options with_every_third_masked(Options options,
                                const ParameterLayout& layout) {
  options.groups.resize(2);
  for (std::size_t g = 0; g < 2; ++g)
    options.groups[g].exp_avg_mask = test::every_third_masked(layout, g);
  return options;
}

// Whether they had gradients before the freeze or have them from later on.
TEST_P(MaskedForEver, WhatTheUserMaskedNeverMovesOnceFrozen) {
  const ParameterLayout layout = test::late_layout();
  const std::vector<test::MakeOptimizer> all = {
      test::onebit_adam(with_every_third_masked<OnebitAdamOptions>(
          {.freeze = {.step = kLateFreeze}}, layout)),
      test::onebit_lamb(with_every_third_masked<OnebitLambOptions>(
          {.freeze = {.step = kLateFreeze}}, layout)),
      test::zero_one_adam(with_every_third_masked<ZeroOneAdamOptions>(
          {.var_freeze_step = kLateFreeze, .local_step_scaler = 4}, layout))};
  std::vector<float> masks;
  std::vector<std::size_t> used(2);
  const auto by_group = [&](std::size_t g) {
    return test::every_third_masked(layout, g);
  };
  for (const Parameter& p : layout.parameters())
    for (std::size_t i = 0; i < p.size; ++i)
      masks.push_back(by_group(p.group)[used[p.group]++]);
  for (const auto& make : all)
    comm::run_local_ranks(GetParam(), [&](comm::Communicator& comm) {
      const auto optimizer = make(comm, layout);
      std::vector<float> params = test::normal(layout.size(), 3), frozen;
      for (std::int64_t t = 1; t <= kFirstLate + 8; ++t) {
        auto grads = test::late_gradient(layout, t, comm.rank());
        optimizer->step(params, grads);
        if (t == kLateFreeze) frozen = params;
      }
      optim::synchronize(*optimizer, params);
      for (std::size_t i = 0; i < params.size(); ++i)
        if (masks[i] == 0) {
          ASSERT_EQ(params[i], frozen[i]) << i;
        }
    });
}

// A step in which late elements would have come to life is skipped: they do so
// in the next one that counts.
TEST_P(MaskedForEver, ASkippedStepWakesNobody) {
  const ParameterLayout layout = test::late_layout();
  for (const Case& test_case : two_stage_cases())
    comm::run_local_ranks(GetParam(), [&](comm::Communicator& comm) {
      const auto optimizer = test_case.make(comm, layout);
      std::vector<float> params = test::normal(layout.size(), 3);
      for (std::int64_t t = 1; t <= kFirstLate; ++t) {
        auto grads = test::late_gradient(layout, t, comm.rank());
        if (t == kFirstLate) {
          auto bad = grads;
          if (comm.rank() == comm.size() - 1)
            bad.back() = std::numeric_limits<float>::infinity();
          const StateDict before = copy_of(optimizer->state());
          EXPECT_FALSE(optimizer->step(params, bad).applied);
          EXPECT_TRUE(test::same_state(copy_of(optimizer->state()), before,
                                       {"skipped_steps"}))
              << test_case.name;
        }
        const StepReport report = optimizer->step(params, grads);
        EXPECT_EQ(report.revived > 0, t == kFirstLate) << test_case.name;
      }
    });
}

// 0/1 Adam's ranks exchange nothing in local steps: by the next sync but one
// every element that has had a gradient has moved, on all ranks alike.
TEST(ZeroOneAdamLateElements, MoveSoonAndAlikeOnAllRanks) {
  const ParameterLayout layout = test::late_layout();
  const auto make = test::zero_one_adam({.learning_rate = 0.01,
                                         .var_freeze_step = kLateFreeze,
                                         .local_step_scaler = 4,
                                         .local_step_clipper = 4});
  for (const int world : {1, 2, 3, 4}) {
    std::vector<std::vector<float>> params(static_cast<std::size_t>(world));
    comm::run_local_ranks(world, [&](comm::Communicator& comm) {
      const auto optimizer = make(comm, layout);
      auto& mine = params[static_cast<std::size_t>(comm.rank())];
      mine = test::normal(layout.size(), 3);
      for (std::int64_t t = 1; t <= kFirstLate + 12; ++t) {
        auto grads = test::late_gradient(layout, t, comm.rank());
        ASSERT_TRUE(optimizer->step(mine, grads).applied);
      }
      optim::synchronize(*optimizer, mine);
    });
    const std::vector<float> start = test::normal(layout.size(), 3);
    for (const auto& mine : params) ASSERT_EQ(mine, params[0]);
    for (const Parameter& p : layout.parameters())
      for (std::size_t i = 0; i < p.size; ++i)
        ASSERT_EQ(params[0][p.offset + i] != start[p.offset + i],
                  p.name != "never")
            << p.name << ' ' << i;
  }
}

}  // namespace
}  // namespace thinwire::optim::late_elements_test
