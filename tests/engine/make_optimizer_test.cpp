// SPDX-License-Identifier: Apache-2.0
#include "thinwire/engine/make_optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "support/errors.h"
#include "support/ranks.h"
#include "support/same_bits.h"
#include "support/values.h"
#include "thinwire/core/buffer.h"
#include "thinwire/deepspeed/fp16_optimizer.h"
#include "thinwire/deepspeed/zero_optimizer.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/outer/outer_loop.h"
#include "thinwire/precision/mixed_precision.h"
#include "thinwire/zero/zero_optimizer.h"

namespace thinwire::engine::make_optimizer_test {
namespace {

using config::Config;

/// The optimizer of a Config and its parameters.
struct Made {
  Made(comm::Communicator& comm, const Config& config,
       const optim::MakeRule& rule = {})
      : params(layout.size(), config.precision.dtype) {
    kernels::convert(test::normal(layout.size(), 1), params.view());
    stack = make_optimizer(comm, layout, config, params.view(), params.view(),
                           rule);
  }

  // One step with gradients of 1/4, once unscaled: their sum fits fp16.
  [[nodiscard]] optim::StepReport step() {
    const double scale = stack.mixed != nullptr  ? stack.mixed->loss_scale()
                         : stack.zero != nullptr ? stack.zero->loss_scale()
                                                 : 1;
    Buffer grads(layout.size(), params.dtype());
    kernels::convert(
        std::vector<float>(layout.size(), static_cast<float>(scale / 4)),
        grads.view());
    return stack.optimizer->step(params.view(), grads.view());
  }

  ParameterLayout layout = ParameterLayout::of({{"a", {40}}, {"b", {3, 5}}});
  Buffer params;
  OptimizerStack stack;
};

template <class Class, class Base>
bool is_a(const Base* made) {
  return dynamic_cast<const Class*>(made) != nullptr;
}

TEST(MakeOptimizer, ChoosesByPrecisionStageAndSemantics) {
  test::run_ranks("local", 2, [](comm::Communicator& comm) {
    for (const auto semantics :
         {config::Semantics::kCorrected, config::Semantics::kDeepSpeed}) {
      const bool is_deepspeed = semantics == config::Semantics::kDeepSpeed;
      for (const DType dtype : {DType::kFloat32, DType::kFloat16})
        for (const int stage : {0, 1, 2}) {
          Config config;
          config.semantics = semantics;
          config.precision.dtype = dtype;
          config.zero.stage = stage;
          config.gradient_clipping = 100;  // else norms need not be known
          config.validate(comm.size());
          Made made(comm, config);
          const auto& [optimizer, mixed, zero, lean] = made.stack;
          ASSERT_NE(optimizer, nullptr);
          EXPECT_EQ(lean, nullptr);
          EXPECT_EQ(zero != nullptr, stage > 0);
          EXPECT_EQ(mixed != nullptr, stage == 0 && dtype == DType::kFloat16);
          if (zero != nullptr) {
            EXPECT_EQ(is_a<deepspeed::ZeroOptimizer>(zero), is_deepspeed);
            EXPECT_EQ(is_a<zero::ZeroOptimizer>(zero), !is_deepspeed);
          }
          if (mixed != nullptr) {
            EXPECT_EQ(is_a<deepspeed::Fp16Optimizer>(mixed), is_deepspeed);
            EXPECT_EQ(is_a<precision::MixedPrecision>(mixed), !is_deepspeed);
            EXPECT_EQ(mixed->takes_gradients(DType::kFloat32), !is_deepspeed);
          }
          const optim::StepReport report = made.step();
          EXPECT_TRUE(report.applied);
          EXPECT_NEAR(report.grad_norm,
                      std::sqrt(static_cast<double>(made.layout.size())) / 4,
                      1e-4);
        }
    }
  });
}

// In place of the configuration's, whose options do not count. An outer loop
// has it inside.
TEST(MakeOptimizer, TakesARuleOfTheCallers) {
  const optim::LambOptions lamb{.learning_rate = 0.1};
  const optim::MakeRule rule = [&](const ParameterLayout& layout) {
    return std::make_unique<optim::Lamb>(layout, lamb);
  };
  test::run_ranks("local", 2, [&](comm::Communicator& comm) {
    for (const DType dtype :
         {DType::kFloat32, DType::kFloat16, DType::kBFloat16})
      for (const bool has_outer : {false, true}) {
        Config config;
        config.precision.dtype = dtype;
        if (has_outer) config.outer = {.sync_every = 2};
        Made made(comm, config, rule);
        config.optimizer = lamb;
        Made usual(comm, config);
        for (int t = 0; t < 3; ++t) {
          EXPECT_TRUE(made.step().applied);
          EXPECT_TRUE(usual.step().applied);
          EXPECT_TRUE(
              test::same_bytes(made.params.view(), usual.params.view()));
        }
        EXPECT_EQ(made.stack.optimizer->state().common.text("optimizer"),
                  "lamb");
        if (dtype == DType::kFloat32) {
          EXPECT_EQ(is_a<outer::OuterLoop>(made.stack.optimizer.get()),
                    has_outer);
        }
      }
  });
}

TEST(MakeOptimizer, RefusesWhatARuleOfTheCallersDoesNotGoWith) {
  const optim::MakeRule rule = [](const ParameterLayout& layout) {
    return std::make_unique<optim::Adam>(layout, optim::AdamOptions{});
  };
  test::run_ranks("local", 1, [&](comm::Communicator& comm) {
    const auto refused = [&](const Config& config, const char* name,
                             const char* value) {
      test::expect_invalid({name, "with a rule of the caller's", value},
                           [&] { Made(comm, config, rule); });
    };
    Config config;
    config.zero.stage = 2;
    refused(config, "zero.stage", "got 2");
    config = {};
    config.semantics = config::Semantics::kDeepSpeed;
    refused(config, "semantics", "deepspeed");
    config = {};
    config.optimizer = optim::OnebitAdamOptions{.freeze = {.step = 3}};
    refused(config, "optimizer", "onebit_adam");
    config = {};
    config.precision.dtype = config.precision.master_dtype = DType::kBFloat16;
    refused(config, "precision.master_dtype", "bfloat16");
    config = {};
    optim::AdamOptions experts;
    experts.groups = {{.communicator = &comm}};
    config.optimizer = experts;
    refused(config, "optimizer.groups", "without a communicator");
  });
}

}  // namespace
}  // namespace thinwire::engine::make_optimizer_test
