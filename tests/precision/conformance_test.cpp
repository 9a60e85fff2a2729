// SPDX-License-Identifier: Apache-2.0
// Items of docs/conformance.json: 31, 49 and 51, about one step of mixed
// precision, of which exact_gradients_test.cpp tests norm, clipping and the
// first step; 74 to 80, Adam on the CPU; 41 to 48, the loss scaler, and
// settings that make no sense.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string_view>
#include <vector>

#include "precision/support.h"
#include "support/errors.h"
#include "support/same_bits.h"
#include "thinwire/optim/adam.h"
#include "thinwire/precision/loss_scaler.h"

namespace thinwire::precision::conformance_test {
namespace {

using optim::Adam;
using optim::AdamOptions;
using optim::StepReport;
using test::Training;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(MixedPrecision, Item31SkippingInBfloat16IsAChoice) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    for (const bool skips : {true, false}) {
      Training run(comm, test::layout_of(5),
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
TEST(MixedPrecision, Item49AScaleAboveFp16DoesNotOverflow) {
  test::alone([](comm::Communicator& comm) {
    Training run(comm, test::layout_of(3),
                 test::exact_adam(test::seeing_gradients()), {});
    run.grad_dtype = DType::kFloat32;
    EXPECT_EQ(run.optimizer->loss_scale(), 65536);
    EXPECT_TRUE(run.step(std::vector<float>(3, 2)).applied);
    EXPECT_EQ(run.gradient_seen(), 2.0f);
  });
}

// A caller's own factor, on top of the scale: the scaler sees nothing of it.
TEST(MixedPrecision, Item51AnotherScaleIsTheCallersFactor) {
  test::alone([](comm::Communicator& comm) {
    Training run(comm, test::layout_of(1),
                 test::exact_adam(test::seeing_gradients()),
                 test::with_static_scale(DType::kFloat16, 1024));
    std::vector<float> grads = {512 * 3.0f};
    const StepReport report =
        run.optimizer->step({.params = run.params.view(),
                             .grads = grads,
                             .loss_scale = 512 / run.optimizer->loss_scale()});
    EXPECT_EQ(report.loss_scale, 512);
    EXPECT_EQ(run.gradient_seen(), 3.0f);
    EXPECT_EQ(run.optimizer->loss_scale(), 1024);
  });
}

// ---- Adam on the CPU: sizes are those of kernels/adam_test.cpp, 16 bits those
// of own_masters_test.cpp, and vectors are of p = 1 and gradients 0.1, -0.2,
// 0.3

struct Vector {
  std::vector<double> params;
  std::vector<double> exp_avg{};
  std::vector<double> exp_avg_sq{};
};

void expect_vector(const AdamOptions& options, const Vector& want) {
  Adam rule(ParameterLayout::of({{"p", {1}}}), options);
  ThreadPool pool(1);
  std::vector<float> params = {1};
  const std::vector<float> gradients = {0.1f, -0.2f, 0.3f};
  for (std::size_t t = 0; t < 3; ++t) {
    const std::vector<float> grads = {gradients[t]};
    rule.apply(static_cast<std::int64_t>(t) + 1, {params, grads}, pool);
    // Half an ulp below 1 per step, here and in the list, and its 8 digits.
    EXPECT_NEAR(params[0], want.params[t],
                static_cast<double>(t + 1) * 2 * 0x1p-25 + 5e-9);
    // The list forms 1 - beta2 in float, which is 1.3e-5 below the double; its
    // digits add 1e-6.
    if (!want.exp_avg.empty()) {
      EXPECT_NEAR(rule.exp_avg().as<float>()[0], want.exp_avg[t], 5e-9);
    }
    if (!want.exp_avg_sq.empty()) {
      EXPECT_NEAR(rule.exp_avg_sq().as<float>()[0], want.exp_avg_sq[t],
                  1.5e-5 * want.exp_avg_sq[t]);
    }
  }
}

TEST(CpuAdam, Item74IsAdam) {
  expect_vector({}, {.params = {0.99900001, 0.99936610, 0.99902284},
                     .exp_avg = {0.01, -0.011, 0.0201},
                     .exp_avg_sq = {9.99987e-6, 4.998936e-5, 1.399382e-4}});
}

TEST(CpuAdam, Item75DecaysDecoupledOrInTheGradient) {
  expect_vector({.weight_decay = 0.01},
                {.params = {0.99899000, 0.99934608, 0.99899280}});
  Adam rule(ParameterLayout::of({{"p", {1}}}),
            {.weight_decay = 0.01, .decoupled_decay = false});
  ThreadPool pool(1);
  std::vector<float> params = {1};
  const std::vector<float> grads = {0.1f};
  rule.apply(1, {params, grads}, pool);
  EXPECT_NEAR(rule.exp_avg().as<float>()[0], 0.011, 2e-9);
  expect_vector({.weight_decay = 0.01, .decoupled_decay = false},
                {.params = {0.99900001, 0.99930853, 0.99892491}});
}

TEST(CpuAdam, Item76WorksWithoutBiasCorrection) {
  expect_vector({.bias_correction = false},
                {.params = {0.99683774, 0.99839354, 0.99669439}});
}

TEST(CpuAdam, Item78Fp32ParametersWith16BitStateAreAnError) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    const ParameterLayout layout = ParameterLayout::of({{"p", {3}}});
    for (const DType state : {DType::kBFloat16, DType::kFloat16}) {
      const auto optimizer =
          test::exact_adam({.state_dtype = state})(comm, layout);
      std::vector<float> params(3, 1.0f), grads(3, 1.0f);
      test::expect_invalid({"params", "float32"},
                           [&] { optimizer->step(params, grads); });
      EXPECT_EQ(params, std::vector<float>(3, 1.0f));
      EXPECT_EQ(optimizer->progress().steps, 0);
      // As are parameters of the other 16-bit type.
      Buffer other(
          3, state == DType::kFloat16 ? DType::kBFloat16 : DType::kFloat16);
      test::expect_invalid({"params"},
                           [&] { optimizer->step(other.view(), grads); });
    }
  });
}

TEST(CpuAdam, Item79DTypesThatDoNotFitAreErrors) {
  comm::run_local_ranks(1, [](comm::Communicator& comm) {
    const ParameterLayout layout = ParameterLayout::of({{"p", {3}}});
    test::Training run(comm, layout, test::exact_adam({}),
                       test::with_static_scale(DType::kFloat16));
    const StateDict before = copy_of(run.optimizer->state());
    std::vector<double> doubles(3);
    std::vector<float> floats(3);
    Buffer bf16(3, DType::kBFloat16);
    Buffer four(4, DType::kFloat16);
    const auto refused = [&](View params, View grads, std::string_view what) {
      test::expect_invalid({what}, [&] { run.optimizer->step(params, grads); });
    };
    refused(run.params.view(), doubles, "grads");
    refused(run.params.view(), four.view(), "grads");
    refused(bf16.view(), floats, "params");
    refused(floats, floats, "params");
    refused(four.view(), floats, "params");
    EXPECT_EQ(run.optimizer->progress().steps, 0);
    EXPECT_EQ(run.optimizer->progress().skipped, 0);
  });
}

// Item 79: 16-bit slices that begin at an odd element.
TEST(CpuAdam, Item79MisalignedSlicesWork) {
  const std::size_t n = 77;
  const ParameterLayout layout = ParameterLayout::of({{"p", {n}}});
  ThreadPool pool(1);
  for (const std::size_t skip : {1u, 2u, 3u}) {
    Adam aligned(layout, {.state_dtype = DType::kFloat16});
    Adam misaligned(layout, {.state_dtype = DType::kFloat16});
    Buffer a = test::converted(test::normal(n, 1), DType::kFloat16);
    Buffer grads = test::converted(test::normal(n, 2), DType::kFloat16);
    Buffer b(n + skip, DType::kFloat16);
    Buffer other_grads(n + skip, DType::kFloat16);
    kernels::convert(a.view(), b.view().subview(skip, n));
    kernels::convert(grads.view(), other_grads.view().subview(skip, n));
    aligned.apply(1, {a.view(), grads.view()}, pool);
    misaligned.apply(
        1, {b.view().subview(skip, n), other_grads.view().subview(skip, n)},
        pool);
    EXPECT_TRUE(test::same_bytes(b.view().subview(skip, n), a.view())) << skip;
  }
}

TEST(CpuAdam, Item80PowersEqualRunningProducts) {
  const Adam rule(ParameterLayout::of({{"p", {1}}}), {});
  double beta1 = 1;
  double beta2 = 1;
  for (std::int64_t t = 1; t <= 3000; ++t) {
    beta1 *= 0.9;
    beta2 *= 0.999;
    if (t % 1000 != 0) continue;
    const auto c = rule.coefficients(0, t, 1);
    EXPECT_NEAR(c.exp_avg_scale, 1 / (1 - beta1), 1e-6 / (1 - beta1));
    EXPECT_NEAR(c.exp_avg_sq_scale, 1 / (1 - beta2), 1e-6 / (1 - beta2));
  }
}

// ---- the loss scaler

// The scale after each step; 'O' is one with an overflow.
std::vector<double> trace(LossScaler& scaler, std::string_view steps) {
  std::vector<double> scales;
  for (const char step : steps) {
    scaler.update(step == 'O');
    scales.push_back(scaler.scale());
  }
  return scales;
}

std::vector<double> trace(const LossScalerOptions& options,
                          std::string_view steps) {
  LossScaler scaler(options);
  return trace(scaler, steps);
}

using Scales = std::vector<double>;

TEST(LossScaler, Item41GrowsAfterAWindowAndOneStep) {
  EXPECT_EQ(trace({.initial_scale = 256, .window = 2}, "NNNNNNN"),
            (Scales{256, 256, 512, 512, 1024, 1024, 2048}));
}

TEST(LossScaler, Item42HysteresisIsSpentOnceUntilTheScaleGrows) {
  EXPECT_EQ(trace({.window = 2}, "OOONNNO"),
            (Scales{65536, 32768, 16384, 16384, 16384, 32768, 32768}));
}

TEST(LossScaler, Item43ConsecutiveHysteresisForgives) {
  EXPECT_EQ(trace({}, "ONONONO"),
            (Scales{65536, 65536, 32768, 32768, 16384, 16384, 8192}));
  EXPECT_EQ(trace({.consecutive_hysteresis = true}, "ONONONO"),
            Scales(7, 65536));
}

TEST(LossScaler, Item44ThePolicyAtTheMinimumIsAChoice) {
  const LossScalerOptions options{.initial_scale = 4, .hysteresis = 1};
  LossScaler stopping(options);
  EXPECT_EQ(trace(stopping, "OO"), (Scales{2, 1}));
  EXPECT_TRUE(stopping.is_at_minimum());
  test::expect_error(ErrorCode::kNonFinite, {"minimum of 1"},
                     [&] { stopping.update(true); });
  EXPECT_EQ(stopping.scale(), 1);

  LossScalerOptions holding = options;
  holding.at_minimum = AtMinimum::kHold;
  EXPECT_EQ(trace(holding, "OOOO"), (Scales{2, 1, 1, 1}));
}

TEST(LossScaler, Item45HysteresisOfZeroIsRefused) {
  test::expect_invalid({"hysteresis", ">= 1", "got 0"},
                       [] { LossScaler scaler({.hysteresis = 0}); });
}

TEST(LossScaler, Item47BadSettingsAreRefusedOnlyIfTheyMatter) {
  const auto refused = [](LossScalerOptions options, std::string_view field) {
    test::expect_invalid({field}, [&] { options.validate(); });
  };
  refused({.window = 0}, "window");
  refused({.window = -3}, "window");
  refused({.min_scale = 0}, "min_scale");
  refused({.min_scale = NAN}, "min_scale");
  refused({.min_scale = 131072}, "min_scale");
  refused({.max_scale = 1024}, "max_scale");
  refused({.max_scale = NAN}, "max_scale");
  refused({.initial_scale = 0}, "initial_scale");
  refused({.initial_scale = -1}, "initial_scale");
  refused({.initial_scale = kInfinity}, "initial_scale");
  refused({.initial_scale = NAN, .dynamic = false}, "initial_scale");
  LossScalerOptions{
      .dynamic = false, .window = 0, .hysteresis = 0, .min_scale = 0}
      .validate();
}

TEST(LossScaler, Item48AStaticScaleNeverMoves) {
  EXPECT_EQ(trace({.initial_scale = 138, .dynamic = false}, "OONNO"),
            Scales(5, 138));
}

TEST(LossScaler, GrowthIsBounded) {
  EXPECT_EQ(trace({.initial_scale = 4, .window = 1, .max_scale = 16}, "NNNNN"),
            (Scales{4, 8, 16, 16, 16}));
}

TEST(LossScaler, ContinuesFromTheSavedScale) {
  const std::string_view steps = "NNONNNNOONNNNNO";
  for (std::size_t at = 0; at <= steps.size(); ++at) {
    const LossScalerOptions options{.initial_scale = 64, .window = 2};
    LossScaler whole(options);
    LossScaler first(options);
    (void)trace(whole, steps.substr(0, at));
    (void)trace(first, steps.substr(0, at));
    StateDict state;
    first.save(state);
    LossScaler second(options);
    second.load(state);
    EXPECT_EQ(second.scale(), first.scale());
    EXPECT_EQ(trace(second, steps.substr(at)), trace(whole, steps.substr(at)));
  }
}

TEST(LossScaler, ASavedScaleMustBePossible) {
  StateDict state;
  LossScaler scaler;
  scaler.save(state);
  state.put_real("loss_scale", NAN);
  test::expect_error(ErrorCode::kCorruptCheckpoint, {"loss scale", "nan"},
                     [&] { scaler.load(state); });
  EXPECT_EQ(scaler.scale(), 65536);
}

}  // namespace
}  // namespace thinwire::precision::conformance_test
