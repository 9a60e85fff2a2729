// SPDX-License-Identifier: Apache-2.0
// Items of docs/conformance.md about one step of mixed precision: scale, norm,
// clipping, and what the first step does.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "optim/states.h"
#include "precision/support.h"
#include "support/errors.h"

namespace thinwire::precision::conformance_test {
namespace {

using optim::StepReport;
using test::Training;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// One step of fp32 gradients, all `grad` * scale, and its report.
struct OneStep {
  Training run;
  std::vector<float> start;

  OneStep(comm::Communicator& comm, const ParameterLayout& layout,
          const test::MakeOptimizer& make, const MixedPrecisionOptions& options)
      : run(comm, layout, make, options) {
    run.grad_dtype = DType::kFloat32;
    const auto masters = run.optimizer->masters().as<float>();
    start.assign(masters.begin(), masters.end());
  }
  StepReport step(float grad) {
    return run.step(std::vector<float>(start.size(), grad));
  }
  [[nodiscard]] double moved(std::size_t i) const {
    return static_cast<double>(run.optimizer->masters().as<float>()[i]) -
           start[i];
  }
};

void alone(const std::function<void(comm::Communicator&)>& body) {
  comm::run_local_ranks(1, body);
}

ParameterLayout layout_of(std::size_t size) {
  return ParameterLayout::of({{"p", {size}}});
}

// beta1 = beta2 = 0 and no bias correction: exp_avg is what the gradient was
// after it had been unscaled and clipped.
test::MakeOptimizer seeing_gradients(double max_grad_norm = 0) {
  return test::exact_adam({.beta1 = 0, .beta2 = 0, .bias_correction = false},
                          {.max_grad_norm = max_grad_norm});
}

float gradient_seen(const Training& run) {
  return copy_of(run.optimizer->state()).array("exp_avg").as<float>()[0];
}

TEST(MixedPrecision, Item29UnscalesAndClipsTogether) {
  alone([](comm::Communicator& comm) {
    const auto seen = [&](double scaled, double max_grad_norm) {
      Training run(comm, layout_of(1), seeing_gradients(max_grad_norm),
                   test::with_static_scale(DType::kFloat16));
      std::vector<float> grads = {static_cast<float>(scaled)};
      const StepReport report = run.optimizer->step(run.params.view(), grads);
      EXPECT_EQ(report.grad_norm, scaled / 1024);
      EXPECT_EQ(report.loss_scale, 1024);
      return gradient_seen(run);
    };
    // A combined factor of 1 / 10240, without the reference's 1e-6.
    EXPECT_EQ(seen(10240, 1), 10240 * static_cast<float>(0.1 / 1024));
    EXPECT_EQ(seen(512, 1), 0.5f);
    EXPECT_EQ(seen(10240, 0), 10.0f);
  });
}

// The third clean step is the one after which the scale grows.
TEST(MixedPrecision, Item30GrowthDoesNotChangeTheStepItFollows) {
  alone([](comm::Communicator& comm) {
    for (const double max_grad_norm : {0.0, 1.0}) {
      Training run(comm, layout_of(1), seeing_gradients(max_grad_norm),
                   {.loss_scale = {.initial_scale = 1024, .window = 2}});
      for (int t = 1; t <= 4; ++t) {
        const double scale = run.optimizer->loss_scale();
        EXPECT_EQ(scale, t <= 3 ? 1024 : 2048);
        std::vector<float> grads = {static_cast<float>(1.5 * scale)};
        const StepReport report = run.optimizer->step(run.params.view(), grads);
        EXPECT_EQ(report.grad_norm, 1.5);
        EXPECT_EQ(report.clip_factor, max_grad_norm == 0 ? 1 : 1 / 1.5);
        // Two roundings of numbers near 1.
        EXPECT_NEAR(gradient_seen(run), max_grad_norm == 0 ? 1.5 : 1.0, 2e-7);
      }
    }
  });
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

TEST(MixedPrecision, Item32StepsAreThoseThatWereTaken) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      Training run(comm, layout_of(5), test::exact_adam({}), {.dtype = dtype});
      for (int t = 1; t <= 6; ++t) {
        (void)run.step(std::vector<float>(5, t == 2 ? kInfinity : 0.25f));
        EXPECT_EQ(run.optimizer->progress().steps, t < 2 ? t : t - 1);
        EXPECT_EQ(copy_of(run.optimizer->state()).integer("step"),
                  run.optimizer->progress().steps);
      }
      EXPECT_EQ(run.optimizer->progress().skipped, 1);
    }
  });
}

// Also item 58: no gradient is one of 0, and its state advances.
TEST(MixedPrecision, Item33AParameterWithoutGradientStillDecays) {
  alone([](comm::Communicator& comm) {
    const ParameterLayout layout =
        ParameterLayout::of({{"used", {2}}, {"unused", {2}}});
    OneStep one(comm, layout,
                test::exact_adam({.learning_rate = 0.5, .weight_decay = 0.5}),
                test::with_static_scale(DType::kFloat16));
    (void)one.run.step({1, 1, 0, 0});
    for (std::size_t i = 2; i < 4; ++i)
      EXPECT_EQ(one.run.optimizer->masters().as<float>()[i],
                one.start[i] - 0.25f * one.start[i]);
  });
}

TEST(MixedPrecision, Item58AMissingGradientAdvancesTheState) {
  alone([](comm::Communicator& comm) {
    OneStep one(comm, layout_of(1), test::exact_adam({.beta1 = 0.5}),
                test::with_static_scale(DType::kFloat16));
    (void)one.step(1);
    (void)one.step(0);
    EXPECT_EQ(gradient_seen(one.run), 0.25f);  // 0.5 * (0.5 * 1)
    EXPECT_EQ(one.run.optimizer->progress().steps, 2);
    EXPECT_EQ(one.run.optimizer->progress().skipped, 0);
  });
}

// 2^16 is no fp16 number, but the scale and fp32 gradients may be above it.
TEST(MixedPrecision, Item49AScaleAboveFp16IsNoOverflow) {
  alone([](comm::Communicator& comm) {
    OneStep one(comm, layout_of(3), seeing_gradients(), {});
    EXPECT_EQ(one.run.optimizer->loss_scale(), 65536);
    EXPECT_TRUE(one.step(2).applied);
    EXPECT_EQ(gradient_seen(one.run), 2.0f);
  });
}

TEST(MixedPrecision, Item50TheStepDoesNotDependOnTheScale) {
  alone([](comm::Communicator& comm) {
    for (double scale = 1; scale <= 65536; scale *= 2) {
      OneStep one(comm, layout_of(3),
                  test::exact_adam({.learning_rate = 1, .epsilon = 1e-12}),
                  test::with_static_scale(DType::kFloat16, scale));
      const StepReport report = one.step(1);
      EXPECT_EQ(report.loss_scale, scale);
      // The move is 1 up to the rounding of parameters below 4.
      for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(one.moved(i), -1, 5e-7);
    }
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

TEST(MixedPrecision, Item53TheFirstGradientIsUsed) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    OneStep one(comm, layout_of(4), test::exact_adam({}),
                test::with_static_scale(DType::kFloat16, 65536));
    (void)one.step(0.1f);
    // lr * g / (g + eps), and the rounding of parameters below 4.
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(one.moved(i), -1.0e-3, 1e-10 + 1.2e-7);

    // Nothing has decayed before the first step.
    OneStep decayed(comm, layout_of(4),
                    test::exact_adam({.weight_decay = 0.01}),
                    test::with_static_scale(DType::kFloat16));
    EXPECT_EQ(decayed.start, test::normal(4, 3));
    (void)decayed.step(0);
    for (std::size_t i = 0; i < 4; ++i)
      EXPECT_NEAR(decayed.moved(i), -1e-5 * decayed.start[i], 1.2e-7);
  });
}

TEST(MixedPrecision, Item54TheReportedNormIsThatOfTheGradient) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    for (const DType grads : {DType::kFloat32, DType::kFloat16}) {
      Training run(comm, layout_of(4), test::exact_adam({}),
                   test::with_static_scale(DType::kFloat16, 128));
      run.grad_dtype = grads;
      const auto report = run.step(std::vector<float>(4, 0.5f));
      EXPECT_EQ(report.grad_norm, 1);
      EXPECT_FALSE(report.grad_norm_is_estimate);
    }
  });
}

TEST(MixedPrecision, Item60OnebitAdamUsesItsFirstGradient) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    const ParameterLayout layout = layout_of(40);
    const auto onebit = test::onebit_adam({})(comm, layout);
    const auto exact = test::exact_adam({})(comm, layout);
    std::vector<float> params = test::normal(40, 3);
    std::vector<float> want = params;
    const std::vector<float> start = params;
    auto grads = test::gradient(40, 1, comm.rank());
    auto same = grads;
    onebit->step(params, grads);
    exact->step(want, same);
    EXPECT_EQ(params, want);
    EXPECT_NE(params, start);
  });
}

}  // namespace
}  // namespace thinwire::precision::conformance_test
