// SPDX-License-Identifier: Apache-2.0
// Items of docs/conformance.json about who owns what and how gradients are
// reduced.
#include <gtest/gtest.h>

#include <cmath>

#include "zero/support.h"

namespace thinwire::zero::conformance_test {
namespace {

using test::unscaled;
using test::ZeroRun;

const optim::AdamOptions kDecaying{.learning_rate = 0.01, .weight_decay = 0.1};

TEST(Zero, Item11TheMeanOfOneAndThreeIsTwoTheSumFour) {
  const ParameterLayout layout = test::two_groups();
  for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
    test::run_ranks("local", 2, [&](comm::Communicator& comm) {
      for (const int stage : {1, 2})
        for (const bool average : {true, false}) {
          ZeroOptions options = unscaled(stage, dtype);
          options.average = average;
          ZeroRun run(comm, layout, test::seeing_gradients(), options);
          const float own = comm.rank() == 0 ? 1.0f : 3.0f;
          const float want = average ? 2.0f : 4.0f;
          const auto report = run.step(std::vector<float>(layout.size(), own));
          EXPECT_DOUBLE_EQ(
              report.grad_norm,
              want * std::sqrt(static_cast<double>(layout.size())));
          EXPECT_EQ(run.state("exp_avg"),
                    std::vector<float>(layout.size(), want));
        }
    });
}

TEST(Zero, Item13DividingBeforeAddingIsNotAnOption) {
  // Four times the largest number is none, the mean of it is.
  const ParameterLayout layout = test::two_groups();
  test::run_ranks("local", 4, [&](comm::Communicator& comm) {
    for (const int stage : {1, 2}) {
      ZeroRun run(comm, layout, test::seeing_gradients(), unscaled(stage));
      EXPECT_TRUE(
          run.step(std::vector<float>(layout.size(), 65504.0f)).applied);
      EXPECT_EQ(run.state("exp_avg"),
                std::vector<float>(layout.size(), 65504.0f));
    }
  });
}

// One rank after the other in fp32, times 1/P, rounded once.
std::vector<float> plain_mean(const std::vector<std::vector<float>>& of_ranks,
                              DType dtype) {
  std::vector<float> mean = of_ranks[0];
  const float share = 1.0f / static_cast<float>(of_ranks.size());
  for (std::size_t i = 0; i < mean.size(); ++i) {
    for (std::size_t r = 1; r < of_ranks.size(); ++r) mean[i] += of_ranks[r][i];
    mean[i] *= share;
  }
  return test::floats_of(test::rounded(mean, dtype).view());
}

// fp32 gradients that travel in 16 bits are rounded before, and once after.
TEST(Zero, Item15Fp32GradientsMayBeSentIn16Bits) {
  const ParameterLayout layout = test::two_groups();
  constexpr int kWorld = 3;
  std::vector<std::vector<float>> grads;
  for (unsigned r = 0; r < kWorld; ++r)
    grads.push_back(test::normal(layout.size(), 70 + r));
  auto halves = grads;
  for (auto& of_rank : halves)
    of_rank = test::floats_of(test::rounded(of_rank, DType::kFloat16).view());
  const auto want = plain_mean(halves, DType::kFloat16);
  test::run_ranks("local", kWorld, [&](comm::Communicator& comm) {
    for (const int stage : {1, 2}) {
      ZeroOptions options = unscaled(stage, DType::kFloat32);
      options.communication_dtype = DType::kFloat16;
      ZeroRun run(comm, layout, test::seeing_gradients(), options);
      run.backward(grads[static_cast<std::size_t>(comm.rank())]);
      EXPECT_EQ(run.gradient(), want) << "stage " << stage;
    }
  });
}

// Of parameters of 16 bits too, if that is what is asked for: all stages give
// what mixed precision without shards gives.
TEST(Zero, Item15WholeFp32GradientsMayBeSentInFp32) {
  const ParameterLayout layout = test::two_groups();
  for (const int world : {1, 2, 3})
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16})
      test::run_ranks("local", world, [&](comm::Communicator& comm) {
        const auto grads = test::normal(
            layout.size(), 80u + static_cast<unsigned>(comm.rank()));
        const auto step = [&](optim::Optimizer& optimizer, View params) {
          auto own = grads;
          EXPECT_TRUE(optimizer.step(params, own).applied);
          return test::floats_of(params);
        };
        const auto start = test::normal(layout.size(), 3);
        Buffer params = test::rounded(start, dtype);
        const test::Unsharded unsharded(comm, layout,
                                        test::adam_rule(kDecaying), dtype,
                                        start, unscaled(1, dtype).loss_scale);
        const auto want = step(*unsharded.optimizer, params.view());
        for (const int stage : {1, 2}) {
          ZeroOptions options = unscaled(stage, dtype);
          options.communication_dtype = DType::kFloat32;
          ZeroRun run(comm, layout, test::adam_rule(kDecaying), options);
          EXPECT_EQ(step(*run.optimizer, run.params.view()), want)
              << "stage " << stage;
        }
      });
}

}  // namespace
}  // namespace thinwire::zero::conformance_test
