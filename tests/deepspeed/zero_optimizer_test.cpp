// SPDX-License-Identifier: Apache-2.0
// Tests where DeepSpeed's ZeRO differs, by the numbers of
// docs/conformance.json.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "deepspeed/rounded_sum.h"
#include "support/converted.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "support/values.h"
#include "thinwire/core/buffer.h"
#include "thinwire/deepspeed/zero_optimizer.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/optim/adam.h"

namespace thinwire::deepspeed::zero_optimizer_test {
namespace {

using optim::AdamOptions;
using optim::StepReport;

void ranks(int world, const std::function<void(comm::Communicator&)>& body) {
  test::run_ranks("local", world, body);
}

ParameterLayout layout_of(std::vector<std::size_t> sizes) {
  std::vector<ParameterSpec> specs;
  for (const std::size_t size : sizes)
    specs.push_back({fmt::format("p{}", specs.size()), {size}});
  return ParameterLayout::of(std::move(specs));
}

// exp_avg is what is left of the gradient after unscaling and clipping.
AdamOptions seeing_gradients() {
  return {.beta1 = 0, .beta2 = 0, .bias_correction = false};
}

ZeroOptions reference(int stage, DType dtype = DType::kFloat32) {
  return {.stage = stage,
          .dtype = dtype,
          .loss_scale = {.initial_scale = 1024, .dynamic = false},
          .accumulation_dtype = dtype};
}

/// One rank's memory and optimizer.
struct Training {
  Training(comm::Communicator& comm, const ParameterLayout& of,
           const ZeroOptions& options, AdamOptions rule = seeing_gradients(),
           std::vector<float> start = {})
      : layout(of), params(layout.size(), options.dtype) {
    if (!start.empty()) kernels::convert(start, params.view());
    optimizer = std::make_unique<ZeroOptimizer>(comm, layout, rule,
                                                params.view(), options);
  }

  void backward(const std::vector<float>& grads,
                exchange::Backward which = {}) {
    optimizer->gradients().begin(which);
    const Buffer all = test::converted(grads, params.dtype());
    for (std::size_t p = 0; p < layout.parameters().size(); ++p)
      optimizer->gradients().collect(
          p, all.view().subview(layout.parameters()[p].offset,
                                layout.parameters()[p].size));
    optimizer->gradients().end();
  }
  StepReport step(const std::vector<float>& grads) {
    Buffer whole = test::converted(grads, params.dtype());
    return optimizer->step(params.view(), whole.view());
  }
  [[nodiscard]] float gradient_seen() const {
    return optimizer->whole_values().state("p0", "exp_avg")[0];
  }

  ParameterLayout layout;
  Buffer params;
  std::unique_ptr<ZeroOptimizer> optimizer;
};

TEST(DeepSpeedZero, Item11AveragesOrSums) {
  for (const bool average : {true, false})
    for (const bool reduce_scatter : {true, false})
      ranks(2, [&](comm::Communicator& comm) {
        ZeroOptions options = reference(1);
        options.average = average;
        options.reduce_scatter = reduce_scatter;
        Training run(comm, layout_of({3}), options);
        run.backward(std::vector<float>(3, comm.rank() == 0 ? 1.0f : 3.0f));
        for (const float g : run.optimizer->whole_values().gradient("p0"))
          EXPECT_EQ(g, average ? 2.0f : 4.0f);
      });
}

// Four times 40000 is above what fp16 holds; so is every second sum of two.
TEST(DeepSpeedZero, Item12DividesBeforeTheSumIfAsked) {
  const auto mean = [](double predivide, bool prescale) {
    float got = 0;
    ranks(4, [&](comm::Communicator& comm) {
      ZeroOptions options = reference(1);
      options.dtype = DType::kFloat16;
      options.accumulation_dtype = DType::kFloat16;
      options.reduce_scatter = false;
      options.predivide = predivide;
      options.prescale = prescale;
      Training run(comm, layout_of({1}), options);
      run.backward({40000});
      const float value = run.optimizer->whole_values().gradient("p0")[0];
      if (comm.rank() == 0) got = value;
    });
    return got;
  };
  EXPECT_FALSE(std::isfinite(mean(1, false)));
  EXPECT_FALSE(std::isfinite(mean(2, false)));
  EXPECT_EQ(mean(4, false), mean(1, true));
  EXPECT_TRUE(std::isfinite(mean(4, false)));
  ranks(1, [](comm::Communicator& comm) {
    ZeroOptions options = reference(1);
    options.predivide = 0;
    thinwire::test::expect_invalid({"predivide", "> 0", "got 0"}, [&] {
      Training(comm, layout_of({1}), options);
    });
  });
}

TEST(RoundedSum, Item12DividesBeforeAndAfter) {
  const SumScaling parts = sum_scaling(false, 2, 4);
  EXPECT_EQ(1 * parts.before, 0.5f);
  EXPECT_EQ(4 * parts.before * parts.factor, 1.0f);
  const SumScaling before = sum_scaling(true, 1, 4);
  EXPECT_EQ(before.divisor, 4.0f);
  EXPECT_EQ(before.factor, 1.0f);
  // Four ranks that share sequences in pairs; the reference forgets the rest.
  const SumScaling pairs = sum_scaling(false, 4, 2);
  EXPECT_EQ(4 * pairs.before * pairs.factor, 2.0f);

  ranks(4, [&](comm::Communicator& comm) {
    const std::vector<std::size_t> counts = {2, 0, 1, 3};
    for (const SumScaling& scaling : {parts, before})
      for (const DType dtype :
           {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
        const Buffer ones = test::converted(std::vector<float>(6, 1), dtype);
        const Buffer piece =
            rounded_sum(comm, ones.view(), counts, scaling, dtype);
        EXPECT_EQ(piece.dtype(), dtype);
        EXPECT_EQ(test::floats_of(piece.view()),
                  std::vector<float>(
                      counts[static_cast<std::size_t>(comm.rank())], 1.0f));
      }
  });
}

TEST(DeepSpeedZero, Item26SumsUntilTheStepIfNoBackwardWasTheLast) {
  for (const int stage : {1, 2})
    ranks(2, [&](comm::Communicator& comm) {
      Training run(comm, layout_of({5}), reference(stage));
      run.backward({1, 1, 1, 1, 1}, {.is_first = true, .is_last = false});
      run.backward({2, 2, 2, 2, 2}, {.is_first = false, .is_last = false});
      EXPECT_EQ(run.optimizer->whole_values().gradient("p0")[0], 3.0f);
      EXPECT_TRUE(run.optimizer->step().applied);
      EXPECT_EQ(run.gradient_seen(), 3.0f);
    });
}

TEST(DeepSpeedZero, Item31SkippingInBfloat16IsAChoice) {
  for (const bool skips : {true, false})
    ranks(2, [&](comm::Communicator& comm) {
      ZeroOptions options = reference(1, DType::kBFloat16);
      options.exchange.skip_nonfinite = skips;
      Training run(comm, layout_of({3}), options, {}, {1, 2, 3});
      for (int t = 0; t < 8; ++t) {
        const StepReport report = run.step(
            std::vector<float>(3, std::numeric_limits<float>::infinity()));
        EXPECT_EQ(report.applied, !skips);
        // The norm of values that are not finite is -1, and it is squared.
        EXPECT_EQ(report.grad_norm, skips ? 0.0 : 1.0);
      }
      EXPECT_EQ(run.optimizer->progress().skipped, skips ? 8 : 0);
      for (const float p : test::floats_of(run.params.view()))
        EXPECT_EQ(std::isfinite(p), skips);
    });
}

TEST(DeepSpeedZero, NamesTheOverflowingParameterAtTheMinimumScale) {
  ranks(3, [](comm::Communicator& comm) {
    ZeroOptions options = reference(2, DType::kFloat16);
    options.loss_scale = {.initial_scale = 1, .hysteresis = 1, .min_scale = 1};
    Training run(comm, layout_of({4, 4, 4}), options);
    EXPECT_TRUE(run.step(std::vector<float>(12, 1)).applied);
    std::vector<float> grads(12, 1);
    if (comm.rank() == 2) grads[6] = std::numeric_limits<float>::infinity();
    test::expect_error(ErrorCode::kNonFinite,
                       {"minimum of 1", "'p1'", "last good step was 1"},
                       [&] { (void)run.step(grads); });
    EXPECT_TRUE(run.step(std::vector<float>(12, 1)).applied);
  });
}

TEST(DeepSpeedZero, ReportsTheScaleThatASkippedStepsGradientsHad) {
  ranks(2, [](comm::Communicator& comm) {
    ZeroOptions options = reference(2, DType::kFloat16);
    options.loss_scale = {.initial_scale = 256, .hysteresis = 1};
    Training run(comm, layout_of({2}), options);
    const float infinity = std::numeric_limits<float>::infinity();
    const StepReport report = run.step({1, infinity});
    EXPECT_FALSE(report.applied);
    EXPECT_EQ(report.loss_scale, 256);
    EXPECT_EQ(run.optimizer->loss_scale(), 128);
  });
}

TEST(DeepSpeedZero, ForgetsABackwardThatIsCancelled) {
  for (const int stage : {1, 2})
    ranks(2, [&](comm::Communicator& comm) {
      Training run(comm, layout_of({2}), reference(stage));
      run.backward({5, 5}, {.is_first = true, .is_last = false});
      run.optimizer->gradients().begin({.is_first = false, .is_last = true});
      run.optimizer->gradients().collect(0, std::vector<float>{7, 7});
      EXPECT_TRUE(run.optimizer->gradients().cancel());
      run.backward({1, 1});
      EXPECT_TRUE(run.optimizer->step().applied);
      EXPECT_EQ(run.gradient_seen(), 1.0f);
    });
}

TEST(DeepSpeedZero, SetsAndReturnsWholeValues) {
  ranks(2, [](comm::Communicator& comm) {
    Training run(comm, layout_of({3, 4}), reference(1, DType::kFloat16));
    const std::vector<float> values = {0.1f, -2, 1024, 7};
    run.optimizer->whole_values().set_parameter("p1", values);
    EXPECT_EQ(run.optimizer->whole_values().parameter("p1"), values);
    EXPECT_EQ(test::floats_of(run.params.view().subview(3, 4)),
              test::floats_of(test::converted(values, DType::kFloat16).view()));
    run.optimizer->whole_values().set_state("p1", "exp_avg_sq", values);
    EXPECT_EQ(run.optimizer->whole_values().state("p1", "exp_avg_sq"), values);
    test::expect_invalid({"exp_avg", "'step'"}, [&] {
      (void)run.optimizer->whole_values().state("p1", "step");
    });
    run.backward(std::vector<float>(7, 1024));
    EXPECT_EQ(run.optimizer->whole_values().gradient("p0"),
              std::vector<float>(3, 1));
    run.optimizer->whole_values().set_gradient("p0", std::vector<float>(3, 2));
    EXPECT_EQ(run.optimizer->whole_values().gradient("p0"),
              std::vector<float>(3, 2));
    (void)run.optimizer->step();
    EXPECT_EQ(run.gradient_seen(), 2.0f);
  });
}

TEST(DeepSpeedZeroErrors, NameOptionsThatDeepSpeedLacks) {
  ranks(1, [](comm::Communicator& comm) {
    const auto refused = [&](std::initializer_list<std::string_view> parts,
                             AdamOptions rule) {
      test::expect_invalid(parts, [&] {
        const Training run(comm, layout_of({2}), reference(1), rule);
      });
    };
    refused({"epsilon_inside_sqrt", "false"}, {.epsilon_inside_sqrt = true});
    refused({"state_dtype", "float32"}, {.state_dtype = DType::kFloat16});
    Training run(comm, layout_of({2}), reference(1));
    Buffer grads(2, DType::kFloat32);
    test::expect_invalid({"loss_scale", "1"}, [&] {
      (void)run.optimizer->step({.params = run.params.view(),
                                 .grads = grads.view(),
                                 .loss_scale = 2});
    });
    EXPECT_EQ(run.optimizer->early(), nullptr);
  });
}

// ---- arguments that the constructor refuses

TEST(DeepSpeedZeroConstruction, OptionsHaveRanges) {
  const auto refused = [](std::string_view field, const ZeroOptions& options) {
    test::expect_invalid({field}, [&] { options.validate(); });
  };
  for (const int stage : {-1, 0, 3}) refused("stage", {.stage = stage});
  for (const DType dtype : {DType::kFloat64, DType::kInt64}) {
    refused("dtype", {.dtype = dtype});
    refused("accumulation_dtype", {.accumulation_dtype = dtype});
    refused("communication_dtype", {.communication_dtype = dtype});
  }
  const DType half = DType::kFloat16;
  refused("max_grad_norm", {.exchange = {.max_grad_norm = -1}});
  refused("window", {.dtype = half, .loss_scale = {.window = 0}});
  EXPECT_NO_THROW((ZeroOptions{.loss_scale = {.window = 0}}.validate()));
  EXPECT_NO_THROW(
      (ZeroOptions{.dtype = half, .loss_scale = {.hysteresis = 0}}.validate()));
}

TEST(DeepSpeedZeroConstruction, ArgumentsFitTheLayout) {
  ranks(2, [](comm::Communicator& comm) {
    const auto layout = ParameterLayout::of({{"a", {5}}, {"b", {2}}});
    std::vector<float> params(7);
    std::vector<float> three(3);
    test::expect_invalid({"params", "float32 of 7", "float32 of 3"},
                         [&] { ZeroOptimizer zero(comm, layout, {}, three); });
    test::expect_invalid({"initial", "float32 of 3"}, [&] {
      ZeroOptimizer zero(comm, layout, {}, params, {}, three);
    });
    EXPECT_NO_THROW(ZeroOptimizer(comm, layout, {}, params));
  });
}

// Every field in which ranks may differ.
TEST(DeepSpeedZeroConstruction, RanksGiveTheSameOptions) {
  const ZeroOptions base{.dtype = DType::kFloat16};
  std::vector<ZeroOptions> others(8, base);
  others[0].stage = 2;
  others[1].communication_dtype = DType::kFloat32;
  others[2].accumulation_dtype = DType::kFloat16;
  others[3].average = false;
  others[4].round_robin = true;
  others[5].reduce_scatter = false;
  others[6].exchange.max_grad_norm = 2;
  others[7].loss_scale.hysteresis = 5;
  ranks(3, [&](comm::Communicator& comm) {
    const auto layout = ParameterLayout::of({{"a", {5}}, {"b", {2}}});
    Buffer params(layout.size(), DType::kFloat16);
    const auto differs = [&](const optim::AdamOptions& adam,
                             const ZeroOptions& options) {
      test::expect_invalid({"must be the same on all ranks", "rank 2"}, [&] {
        ZeroOptimizer zero(comm, layout, adam, params.view(), options);
      });
    };
    const bool is_other = comm.rank() == 2;
    for (const ZeroOptions& other : others)
      differs({}, is_other ? other : base);
    differs({.beta1 = is_other ? 0.8 : 0.9}, base);
  });
}

TEST(DeepSpeedZeroConstruction, Item6FullParametersAreTheInitialOnes) {
  const auto layout =
      ParameterLayout::of({{"a", {5, 7}, 0}, {"b", {2}, 1}, {"c", {11}, 0}});
  for (const int world : {1, 2, 3, 4})
    ranks(world, [&](comm::Communicator& comm) {
      std::vector<float> params = test::normal(layout.size(), 1);
      ZeroOptimizer zero(comm, layout, {}, params, {.round_robin = true});
      for (const Parameter& p : layout.parameters()) {
        const auto begin =
            params.begin() + static_cast<std::ptrdiff_t>(p.offset);
        EXPECT_EQ(zero.whole_values().parameter(p.name),
                  std::vector<float>(
                      begin, begin + static_cast<std::ptrdiff_t>(p.size)));
      }
    });
}

}  // namespace
}  // namespace thinwire::deepspeed::zero_optimizer_test
