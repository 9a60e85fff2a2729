// SPDX-License-Identifier: Apache-2.0
// Where gradients are exact in 16 bits, mixed precision takes the very steps
// that its optimizer takes alone in fp32, and the parameters are the masters,
// rounded, whatever was in their memory before.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "precision/support.h"
#include "support/same_bits.h"

namespace thinwire::precision::exact_gradients_test {
namespace {

using optim::Phase;
using optim::StepReport;
using test::LowBitCase;
using test::Training;

enum class Kind { kStatic, kDynamic, kBfloat16, kFp32Gradients };

MixedPrecisionOptions options_of(Kind kind) {
  if (kind == Kind::kBfloat16) return test::with_static_scale(DType::kBFloat16);
  if (kind != Kind::kDynamic) return test::with_static_scale(DType::kFloat16);
  return {
      .loss_scale = {.initial_scale = 256, .window = 1, .max_scale = 65536}};
}

class ExactGradients
    : public ::testing::TestWithParam<std::tuple<int, Kind, LowBitCase>> {};
INSTANTIATE_TEST_SUITE_P(
    All, ExactGradients,
    ::testing::Combine(::testing::Values(1, 2, 4),
                       ::testing::Values(Kind::kStatic, Kind::kDynamic,
                                         Kind::kBfloat16, Kind::kFp32Gradients),
                       ::testing::ValuesIn(test::every_optimizer())),
    [](const auto& tested) {
      return fmt::format("{}_kind{}_w{}", std::get<2>(tested.param).name,
                         static_cast<int>(std::get<1>(tested.param)),
                         std::get<0>(tested.param));
    });

// Every step writes all of them: their memory holds something else before.
void spoil(Buffer& params) {
  auto* bytes = static_cast<unsigned char*>(params.data());
  std::fill(bytes, bytes + params.bytes(), static_cast<unsigned char>(0x5a));
}

TEST_P(ExactGradients, GiveTheTrajectoryOfTheOptimizerAloneInFp32) {
  const auto& [world, kind, tested] = GetParam();
  const ParameterLayout layout = test::grouped_layout();
  comm::run_local_ranks(
      world, [&, kind = kind, &test_case = tested](auto& comm) {
        Training run(comm, layout, test_case.make, options_of(kind));
        if (kind == Kind::kFp32Gradients) run.grad_dtype = DType::kFloat32;
        const auto alone = test_case.make(comm, layout);
        std::vector<float> params = test::normal(layout.size(), 3);
        for (std::int64_t t = 1; t <= test_case.steps; ++t) {
          // Group 1 rests for a while, in every phase of 0/1 Adam.
          const double rate = t == 3 || (t >= 8 && t <= 16) ? 0 : 0.01;
          run.optimizer->groups().set_learning_rate(1, rate);
          alone->groups().set_learning_rate(1, rate);
          spoil(run.params);
          auto grads = test::grid_gradient(layout, t, comm.rank());
          const StepReport report = run.step(grads);
          const StepReport want = alone->step(params, grads);
          ASSERT_TRUE(report.applied) << "step " << t;
          EXPECT_EQ(report.phase, want.phase) << "step " << t;
          EXPECT_EQ(report.grad_norm, want.grad_norm) << "step " << t;
          EXPECT_EQ(report.clip_factor, want.clip_factor) << "step " << t;
          ASSERT_TRUE(test::same_bits(run.optimizer->masters().as<float>(),
                                      std::span<const float>(params)))
              << "step " << t;
          ASSERT_TRUE(run.params_are_rounded_masters()) << "step " << t;
          if (t % 3 != 0) continue;
          spoil(run.params);
          optim::synchronize(*run.optimizer, run.params.view());
          optim::synchronize(*alone, params);
          ASSERT_TRUE(test::same_bits(run.optimizer->masters().as<float>(),
                                      std::span<const float>(params)))
              << "synchronized " << t;
          ASSERT_TRUE(run.params_are_rounded_masters()) << "synchronized " << t;
        }
        if (kind == Kind::kDynamic) {
          EXPECT_GT(run.optimizer->loss_scale(), 256);
        }
      });
}

// ---- what is handed on to and from the optimizer inside

constexpr std::size_t kSize = 600;

const ParameterLayout kLayout =
    ParameterLayout::of({{"a", {256}}, {"b", {300}}, {"c", {44}}});

TEST(MixedPrecision, PassesOnWeightDecayAndReportsEqualGradients) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    const auto grads = test::normal(kSize, 5);
    const auto trained = [&](double option, double set) {
      Training run(
          comm, kLayout,
          test::onebit_adam({.weight_decay = option, .freeze = {.step = 1}}),
          {.dtype = DType::kBFloat16});
      EXPECT_EQ(run.optimizer->groups().weight_decay(0), option);
      run.optimizer->groups().set_weight_decay(0, set);
      EXPECT_EQ(run.optimizer->groups().weight_decay(0), set);
      for (int t = 1; t <= 3; ++t)
        EXPECT_EQ(run.step(grads).gradients_equal, t <= 2);
      const auto masters = run.optimizer->masters().as<float>();
      return std::vector<float>(masters.begin(), masters.end());
    };
    const auto want = trained(0.3, 0.3);
    EXPECT_NE(trained(0.1, 0.1), want);
    EXPECT_EQ(trained(0.1, 0.3), want);
  });
}

}  // namespace
}  // namespace thinwire::precision::exact_gradients_test
