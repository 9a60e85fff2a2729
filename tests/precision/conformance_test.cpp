// SPDX-License-Identifier: Apache-2.0
// Items of docs/conformance.md about one step of mixed precision: what is
// skipped, and the scale. exact_gradients_test.cpp tests norm, clipping and the
// first step.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "precision/support.h"

namespace thinwire::precision::conformance_test {
namespace {

using optim::StepReport;
using test::Training;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void alone(const std::function<void(comm::Communicator&)>& body) {
  comm::run_local_ranks(1, body);
}

ParameterLayout layout_of(std::size_t size) {
  return ParameterLayout::of({{"p", {size}}});
}

// beta1 = beta2 = 0 and no bias correction: exp_avg is what the gradient was
// after it had been unscaled.
test::MakeOptimizer seeing_gradients() {
  return test::exact_adam({.beta1 = 0, .beta2 = 0, .bias_correction = false});
}

float gradient_seen(const Training& run) {
  return copy_of(run.optimizer->state()).array("exp_avg").as<float>()[0];
}

TEST(MixedPrecision, Item31SkippingInBfloat16IsAChoice) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    for (const bool skips : {true, false}) {
      Training run(comm, layout_of(5),
                   test::exact_adam({}, {.skip_nonfinite = skips}),
                   {.dtype = DType::kBFloat16});
      EXPECT_EQ(run.optimizer->loss_scale(), 1);
      for (int t = 1; t <= 8; ++t) {
        std::vector<float> grads(5, comm.rank() == 1 ? kInfinity : 1.0f);
        const StepReport report = run.step(grads);
        EXPECT_EQ(report.applied, !skips);
        EXPECT_FALSE(std::isfinite(report.grad_norm));
      }
      EXPECT_EQ(run.optimizer->progress().skipped, skips ? 8 : 0);
      EXPECT_EQ(run.optimizer->progress().steps, skips ? 0 : 8);
      for (const BFloat16 p : run.params.as<BFloat16>())
        EXPECT_EQ(std::isfinite(to_float(p)), skips);
    }
  });
}

// In fp16 it is none: the scale could not fall otherwise.
TEST(MixedPrecision, Item31InFp16StepsAreSkippedWhateverIsChosen) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    const ParameterLayout layout = test::grouped_layout();
    auto low_bit = test::short_zero_one_adam();
    low_bit.compression.exchange.skip_nonfinite = false;
    const std::vector<test::LowBitCase> optimizers = {
        {"adam", test::exact_adam({}, {.skip_nonfinite = false}), 3},
        {"zero_one_adam", test::zero_one_adam(low_bit), 21}};
    for (const auto& tested : optimizers) {
      MixedPrecisionOptions options = test::with_static_scale(DType::kFloat16);
      Training run(comm, layout, tested.make, options);
      for (std::int64_t t = 1; t <= tested.steps; ++t) {
        const auto grads = test::grid_gradient(layout, t, comm.rank());
        auto bad = grads;
        if (comm.rank() == 1) bad[2] = kInfinity;
        EXPECT_FALSE(run.step(bad).applied) << tested.name << t;
        EXPECT_TRUE(run.step(grads).applied) << tested.name << t;
        EXPECT_EQ(run.optimizer->progress().skipped, t);
      }
    }
  });
}

// 2^16 is no fp16 number, but the scale and fp32 gradients may be above it.
TEST(MixedPrecision, Item49AScaleAboveFp16IsNoOverflow) {
  alone([](comm::Communicator& comm) {
    Training run(comm, layout_of(3), seeing_gradients(), {});
    run.grad_dtype = DType::kFloat32;
    EXPECT_EQ(run.optimizer->loss_scale(), 65536);
    EXPECT_TRUE(run.step(std::vector<float>(3, 2)).applied);
    EXPECT_EQ(gradient_seen(run), 2.0f);
  });
}

// A caller's own factor, on top of the scale: the scaler sees nothing of it.
TEST(MixedPrecision, Item51AnotherScaleIsTheCallersFactor) {
  alone([](comm::Communicator& comm) {
    Training run(comm, layout_of(1), seeing_gradients(),
                 test::with_static_scale(DType::kFloat16, 1024));
    std::vector<float> grads = {512 * 3.0f};
    const StepReport report =
        run.optimizer->step({.params = run.params.view(),
                             .grads = grads,
                             .loss_scale = 512 / run.optimizer->loss_scale()});
    EXPECT_EQ(report.loss_scale, 512);
    EXPECT_EQ(gradient_seen(run), 3.0f);
    EXPECT_EQ(run.optimizer->loss_scale(), 1024);
  });
}

}  // namespace
}  // namespace thinwire::precision::conformance_test
