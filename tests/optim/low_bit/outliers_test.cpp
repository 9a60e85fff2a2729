// SPDX-License-Identifier: Apache-2.0
// Single gradients that are finite and far too large.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>

#include "optim/low_bit/cases.h"

namespace thinwire::optim::outliers_test {
namespace {

constexpr std::size_t kElements = 1024;
constexpr std::size_t kOutlier = 17;
constexpr int kFreeze = 100;

/// Distances from the optimum, 4.5 at first, of the parameters of one block on
/// two ranks whose gradients `change` has changed before step t.
std::vector<double> distances_after(
    int steps,
    const std::function<void(std::vector<float>& grads, int t, int rank)>&
        change) {
  constexpr float kOptimum = 5;
  const ParameterLayout layout = ParameterLayout::of({{"p", {kElements}}});
  std::vector<double> result;
  comm::run_local_ranks(2, [&](comm::Communicator& comm) {
    OnebitAdam optimizer(comm, layout,
                         {.learning_rate = 0.01, .freeze = {.step = kFreeze}});
    std::vector<float> params(kElements, 0.5f), grads(kElements);
    std::mt19937 random(static_cast<unsigned>(comm.rank()));
    std::normal_distribution<float> noise;
    for (int t = 1; t <= steps; ++t) {
      for (std::size_t i = 0; i < kElements; ++i)
        grads[i] = params[i] - kOptimum + 0.3f * noise(random);
      change(grads, t, comm.rank());
      ASSERT_TRUE(optimizer.step(params, grads).applied);
    }
    if (comm.rank() == 0)
      for (const float p : params) result.push_back(std::abs(p - kOptimum));
  });
  return result;
}

struct Outlier {
  float size = 0;
  int step = 0;
};

class NeighboursOfAnOutlier : public ::testing::TestWithParam<Outlier> {};
INSTANTIATE_TEST_SUITE_P(
    All, NeighboursOfAnOutlier,
    ::testing::Values(Outlier{1, 95}, Outlier{1e4f, 95}, Outlier{1e6f, 95},
                      Outlier{1e8f, 95}, Outlier{1e20f, 95}, Outlier{1e25f, 95},
                      Outlier{1e4f, 100}, Outlier{1e25f, 100}, Outlier{1, 101},
                      Outlier{1e6f, 101}, Outlier{1e6f, 150},
                      Outlier{1e8f, 150}, Outlier{1e25f, 150}),
    [](const auto& tested) {
      return fmt::format("size_1e{}_step_{}",
                         std::lround(std::log10(tested.param.size)),
                         tested.param.step);
    });

// Without an outlier they are 0.36 away in the end; neighbours that stand still
// after the freeze would be 3.5 away.
TEST_P(NeighboursOfAnOutlier, AreTrainedAsWithoutIt) {
  const auto all =
      distances_after(1000, [](std::vector<float>& grads, int t, int rank) {
        if (t == GetParam().step && rank == 0)
          grads[kOutlier] = GetParam().size;
      });
  double others = 0;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (i != kOutlier) others += all[i];
  EXPECT_LE(others / (kElements - 1), 0.40);
}

// What is cut from the denominator is cut from the momentum too: how much
// heavier it is makes no difference, to itself and to its neighbours.
TEST(HeavyElements, AreTrainedAtAnySize) {
  const auto distances = [](float size) {
    return distances_after(600, [size](std::vector<float>& grads, int, int) {
      grads[kOutlier] *= size;
    });
  };
  const auto heavy = distances(100);
  const auto heavier = distances(1e15f);
  EXPECT_LT(heavy[kOutlier], 2.5);
  EXPECT_LT(heavy[kOutlier + 1], 1.5);
  EXPECT_NEAR(heavier[kOutlier], heavy[kOutlier], 0.5);
  EXPECT_NEAR(heavier[kOutlier + 1], heavy[kOutlier + 1], 0.5);
}

constexpr double kLearningRate = 0.01;  // of all_optimizers()

std::vector<test::LowBitCase> clipped_or_not() {
  auto all = test::all_optimizers(
      {.freeze_step = 8, .var_freeze_step = 8, .groups = 0});
  for (auto& clipped : test::all_optimizers({.exchange = {.max_grad_norm = 1},
                       .freeze_step = 8,
                       .var_freeze_step = 8,
                       .groups = 0})) {
    clipped.name += "_clipped";
    all.push_back(clipped);
  }
  return all;
}

class LargeGradients
    : public ::testing::TestWithParam<std::tuple<int, test::LowBitCase>> {};
INSTANTIATE_TEST_SUITE_P(
    All, LargeGradients,
    ::testing::Combine(::testing::Values(1, 3),
                       ::testing::ValuesIn(clipped_or_not())),
    test::kNameAndWorld);

// One element of one rank, in one step of any phase, then as before.
TEST_P(LargeGradients, LeaveParametersFiniteAndStepsShort) {
  const auto& [world, tested] = GetParam();
  // LAMB's steps are as long as the parameters say.
  const bool is_adam = tested.name.find("adam") != std::string::npos;
  const ParameterLayout layout =
      ParameterLayout::of({{"wide", {1100}}, {"narrow", {7}}, {"one", {}}});
  constexpr std::int64_t kSteps = 26;
  for (const float size : {1e6f, 1e20f, 1e38f})
    for (std::int64_t at = 1; at <= kSteps - 4; at += 2)
      comm::run_local_ranks(
          world, [&, &test_case = tested](comm::Communicator& comm) {
            const auto optimizer = test_case.make(comm, layout);
            std::vector<float> params = test::normal(layout.size(), 3);
            for (std::int64_t t = 1; t <= kSteps; ++t) {
              auto grads = test::gradient(layout.size(), t, comm.rank());
              if (t == at && comm.rank() == comm.size() - 1) {
                grads[5] = size;
                grads[1102] = -size;  // of the narrow one
              }
              const std::vector<float> before = params;
              ASSERT_TRUE(optimizer->step(params, grads).applied);
              double longest = 0;
              for (std::size_t i = 0; i < params.size(); ++i) {
                ASSERT_TRUE(std::isfinite(params[i]))
                    << size << " in step " << at << ": element " << i
                    << " after step " << t;
                longest =
                    std::max(longest, std::abs(double{params[i]} - before[i]));
              }
              // One gradient makes the momentum 3.2 times the denominator at
              // most; bias correction makes that four times as much at first,
              // and a sync adds up four steps of 0/1 Adam.
              if (is_adam) {
                ASSERT_LT(longest, 30 * kLearningRate)
                    << size << " in step " << at << ": step " << t;
              }
            }
          });
}

}  // namespace
}  // namespace thinwire::optim::outliers_test
