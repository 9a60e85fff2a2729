// SPDX-License-Identifier: Apache-2.0
// Tests where DeepSpeed's FP16 wrappers differ, by the numbers of
// docs/conformance.json.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "optim/states.h"
#include "precision/support.h"
#include "support/errors.h"
#include "thinwire/deepspeed/fp16_optimizer.h"
#include "thinwire/deepspeed/loss_scaler.h"

namespace thinwire::deepspeed::fp16_optimizer_test {
namespace {

using optim::StepReport;
using precision::LossScalerOptions;

Fp16Options reference(const LossScalerOptions& scale,
                      double max_grad_norm = 0) {
  return {.loss_scale = scale, .max_grad_norm = max_grad_norm};
}

using MakeInner = std::function<std::unique_ptr<Optimizer>(
    comm::Communicator& comm, const ParameterLayout& layout)>;

MakeInner exact_adam(const optim::AdamOptions& rule) {
  return [=](comm::Communicator& comm, const ParameterLayout& layout) {
    return std::make_unique<ExactOptimizer>(
        comm, std::make_unique<optim::Adam>(layout, rule));
  };
}

struct Training : test::Training {
  Training(comm::Communicator& comm, const ParameterLayout& layout,
           const MakeInner& make, const Fp16Options& options)
      : test::Training(std::make_unique<Fp16Optimizer>(
                           comm, layout, make(comm, layout),
                           test::normal(layout.size(), 3), options),
                       layout.size(), DType::kFloat16) {}
};

LossScalerOptions fixed(double scale) {
  return {.initial_scale = scale, .dynamic = false};
}

TEST(Fp16Optimizer, Item29AddsAMillionthToTheNorm) {
  test::alone([](comm::Communicator& comm) {
    const auto seen = [&](float scaled, double max_grad_norm) {
      Training run(comm, test::layout_of(1),
                   exact_adam(test::seeing_gradients()),
                   reference(fixed(1024), max_grad_norm));
      Buffer grads =
          test::converted(std::vector<float>{scaled}, DType::kFloat16);
      (void)run.optimizer->step(run.params.view(), grads.view());
      return run.gradient_seen();
    };
    EXPECT_EQ(seen(10240, 1), 10240 * static_cast<float>(1 / 10240.001024));
    EXPECT_EQ(seen(512, 1), 0.5f);
    EXPECT_EQ(seen(10240, 0), 10.0f);
  });
}

// The third clean step is unscaled by the scale of the fourth.
TEST(Fp16Optimizer, Item30HalvesTheGradientIfTheScaleGrows) {
  test::alone([](comm::Communicator& comm) {
    Training run(comm, test::layout_of(1), exact_adam(test::seeing_gradients()),
                 reference({.initial_scale = 1024, .window = 2}));
    for (int t = 1; t <= 4; ++t) {
      const double scale = run.optimizer->loss_scale();
      (void)run.step({1.5});
      EXPECT_EQ(scale, t <= 3 ? 1024 : 2048);
      EXPECT_EQ(run.gradient_seen(), t == 3 ? 0.75f : 1.5f) << t;
    }
  });
}

TEST(Fp16Optimizer, ReportsTheScaleThatASkippedStepsGradientsHad) {
  test::alone([](comm::Communicator& comm) {
    Training run(comm, test::layout_of(1), exact_adam(test::seeing_gradients()),
                 reference({.initial_scale = 256}));
    const StepReport report =
        run.step({std::numeric_limits<float>::infinity()});
    EXPECT_FALSE(report.applied);
    EXPECT_EQ(report.loss_scale, 256);
    EXPECT_EQ(run.optimizer->loss_scale(), 128);
  });
}

// 40000 and 40000 are above what fp16 holds, halves of them are not.
TEST(Fp16Optimizer, Item12DividesBeforeTheSumIfAsked) {
  const auto applied = [](double predivide, bool prescale) {
    bool result = false;
    comm::run_local_ranks(2, [&](comm::Communicator& comm) {
      Fp16Options options = reference(fixed(1));
      options.predivide = predivide;
      options.prescale = prescale;
      Training run(comm, test::layout_of(1),
                   exact_adam(test::seeing_gradients()), options);
      const bool own = run.step({40000}).applied;
      if (own) {
        EXPECT_EQ(run.gradient_seen(), 40000.0f);
      }
      if (comm.rank() == 0) result = own;
    });
    return result;
  };
  EXPECT_FALSE(applied(1, false));
  EXPECT_TRUE(applied(2, false));
  EXPECT_TRUE(applied(1, true));
}

TEST(Fp16Optimizer, Item53TakesAnInitializationStep) {
  test::alone([](comm::Communicator& comm) {
    Training run(comm, test::layout_of(1), exact_adam({}),
                 reference(fixed(1024)));
    run.optimizer->set_masters(std::vector<float>{1});
    (void)run.step({0.1f});
    // Rounded where floats are 2^-24 apart, in the list as here.
    EXPECT_NEAR(1.0 - run.optimizer->masters().as<float>()[0], 0.744164e-3,
                1e-9);

    Training decayed(comm, test::layout_of(1),
                     exact_adam({.weight_decay = 0.01}),
                     reference(fixed(1024)));
    const float start = test::normal(1, 3)[0];
    EXPECT_FLOAT_EQ(decayed.optimizer->masters().as<float>()[0],
                    0.99999f * start);
  });
}

TEST(Fp16Optimizer, Item54UnfusedReportsAScaledNorm) {
  test::alone([](comm::Communicator& comm) {
    for (const Fp16Wrapper wrapper :
         {Fp16Wrapper::kFused, Fp16Wrapper::kUnfused}) {
      Fp16Options options = reference(fixed(128));
      options.wrapper = wrapper;
      const ParameterLayout layout =
          ParameterLayout::of({{"a", {3}}, {"b", {1}}});
      Fp16Optimizer optimizer(
          comm, layout, exact_adam({})(comm, wrapped_layout(layout, wrapper)),
          test::normal(4, 3), options);
      Buffer params(4, DType::kFloat16);
      Buffer grads =
          test::converted(std::vector<float>(4, 64.0f), DType::kFloat16);
      EXPECT_EQ(optimizer.step(params.view(), grads.view()).grad_norm,
                wrapper == Fp16Wrapper::kFused ? 1.0 : 128.0);
    }
  });
}

// Items 27 and 48; it is a step of its own that the optimizer has taken before.
TEST(Fp16Optimizer, Item27CountsTheStepsThatItSkips) {
  const MakeInner low_bit = [](comm::Communicator& comm,
                               const ParameterLayout& layout) {
    return std::make_unique<OnebitAdam>(comm, layout,
                                        optim::OnebitAdamOptions{});
  };
  for (const auto& [world, make] : {std::pair{1, exact_adam({})},
                                    {2, exact_adam({})},
                                    {3, exact_adam({})},
                                    {1, low_bit},
                                    {3, low_bit}})
    comm::run_local_ranks(world, [&make = make](comm::Communicator& comm) {
      const auto options = reference({.initial_scale = 256, .window = 2});
      Training run(comm, test::layout_of(5), make, options);
      std::int64_t skipped = 0;
      for (int t = 1; t <= 6; ++t) {
        std::vector<float> grads(5, 0.5f);
        const bool overflows = t == 2 || t == 5;
        if (overflows && comm.rank() == comm.size() - 1)
          grads[3] = std::numeric_limits<float>::infinity();
        const Buffer before = test::copied(run.optimizer->masters());
        EXPECT_EQ(run.step(grads).applied, !overflows);
        skipped += overflows ? 1 : 0;
        EXPECT_EQ(run.optimizer->progress().skipped, skipped);
        EXPECT_EQ(run.optimizer->progress().steps, 1 + t - skipped);
        EXPECT_EQ(
            bool{test::same_bytes(run.optimizer->masters(), before.view())},
            overflows);
      }
      Training resumed(comm, test::layout_of(5), make, options);
      resumed.optimizer->load_state_dict(copy_of(run.optimizer->state()));
      EXPECT_EQ(resumed.optimizer->progress().skipped, skipped);
      EXPECT_EQ(resumed.optimizer->loss_scale(), run.optimizer->loss_scale());
      EXPECT_TRUE(test::same_state(copy_of(resumed.optimizer->state()),
                                   copy_of(run.optimizer->state())));
      run.optimizer->load_state_dict(copy_of(resumed.optimizer->state()));
      EXPECT_EQ(run.optimizer->progress().skipped, skipped);
    });
}

TEST(Fp16Optimizer, RefusesUnknownOptions) {
  test::alone([](comm::Communicator& comm) {
    test::expect_invalid({"max_grad_norm", "-1"},
                         [] { reference(fixed(1), -1).validate(); });
    test::expect_invalid({"window", "0"},
                         [] { reference({.window = 0}).validate(); });
    EXPECT_NO_THROW(reference({.hysteresis = 0}).validate());
    const ParameterLayout layout = test::layout_of(2);
    const std::vector<float> initial(2);
    const std::vector<float> three(3);
    test::expect_invalid({"optimizer", "null"}, [&] {
      Fp16Optimizer none(comm, layout, nullptr, initial);
    });
    test::expect_invalid({"initial", "3"}, [&] {
      Fp16Optimizer few(comm, layout, exact_adam({})(comm, layout), three);
    });
    const ParameterLayout unordered =
        ParameterLayout::of({{"a", {1}, 1}, {"b", {1}, 0}});
    test::expect_invalid({"layout", "'b'", "group 0"}, [&] {
      static_cast<void>(wrapped_layout(unordered, Fp16Wrapper::kFused));
    });

    Training run(comm, layout, exact_adam({}), reference(fixed(1)));
    EXPECT_FALSE(run.optimizer->takes_gradients(DType::kFloat32));
    EXPECT_TRUE(run.optimizer->takes_gradients(DType::kFloat16));
    Buffer grads(2, DType::kFloat16);
    test::expect_invalid({"loss_scale", "1"}, [&] {
      (void)run.optimizer->step({.params = run.params.view(),
                                 .grads = grads.view(),
                                 .loss_scale = 2});
    });
    std::vector<float> wide(2);
    test::expect_invalid({"params", "float16"},
                         [&] { run.optimizer->write_params(wide); });
  });
}

// ---- loss scalers

using Scales = std::vector<double>;

// The scale after each step; 'O' is one with an overflow.
Scales trace(const LossScalerOptions& options, std::string_view steps) {
  precision::LossScaler scaler = loss_scaler(options);
  Scales scales;
  for (const char step : steps) {
    scaler.update(step == 'O');
    scales.push_back(scaler.scale());
  }
  return scales;
}

TEST(DeepSpeedLossScaler, Item45NeverFallsWithAHysteresisOfZero) {
  EXPECT_EQ(trace(zero_loss_scaler({.hysteresis = 0}), "OOO"),
            Scales(3, 65536));
}

TEST(DeepSpeedLossScaler, Item46TheWrappersHoldAtTheMinimum) {
  EXPECT_EQ(
      trace(wrapper_loss_scaler({.initial_scale = 256, .window = 2}), "OONNNO"),
      (Scales{128, 64, 64, 64, 128, 64}));
  EXPECT_EQ(trace(wrapper_loss_scaler({.initial_scale = 16, .min_scale = 2}),
                  "OOOOOO"),
            (Scales{8, 4, 2, 2, 2, 2}));
}

TEST(DeepSpeedLossScaler, RisesToAMinimumAboveItsFirstScale) {
  EXPECT_EQ(trace({.initial_scale = 4,
                   .hysteresis = 1,
                   .min_scale = 64,
                   .at_minimum = precision::AtMinimum::kHold},
                  "NOO"),
            (Scales{4, 64, 64}));
}

TEST(DeepSpeedLossScaler, RefusesImpossibleSettings) {
  const auto refused = [](const LossScalerOptions& options,
                          std::initializer_list<std::string_view> parts) {
    test::expect_invalid(parts,
                         [&] { static_cast<void>(loss_scaler(options)); });
  };
  refused({.hysteresis = -1}, {"hysteresis", ">= 0", "-1"});
  refused({.window = 0}, {"window", "0"});
  refused({.min_scale = 0}, {"min_scale", "0"});
  refused({.min_scale = std::numeric_limits<double>::infinity()},
          {"min_scale", "inf"});
  EXPECT_NO_THROW(
      static_cast<void>(loss_scaler({.dynamic = false, .hysteresis = -1})));
}

}  // namespace
}  // namespace thinwire::deepspeed::fp16_optimizer_test
