// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/engine.h"

#include <gtest/gtest.h>

#include "support/errors.h"
#include "torch/net.h"

namespace thinwire::torch::engine_test {
namespace {

using test::expect_error;
using test::expect_invalid;

// Trains both for some steps and compares them bit for bit. `change` is applied
// to both modules first.
void expect_same_bits(
    comm::Communicator& comm, DType dtype,
    const std::function<void(Net&)>& change = {},
    const std::function<void(const engine::EngineReport&)>& look = {}) {
  Net plain;
  Net net(comm.rank());
  if (change) {
    change(plain);
    change(net);
  }
  ByHand hand(comm, plain, dtype);
  Engine engine(net, comm, config_of(dtype));
  const double scale = engine.core().loss_scale();
  for (int t = 1; t <= 4; ++t) {
    const auto want = hand.step({t}, scale);
    const engine::EngineReport report = step(engine, net, comm.rank(), t);
    EXPECT_TRUE(report.applied);
    EXPECT_EQ(report.steps, t);
    EXPECT_EQ(report.grad_norm, want.grad_norm);
    ASSERT_EQ(floats(engine.params()), hand.params()) << "step " << t;
    EXPECT_EQ(net.first->weight[0][0].item<float>(),
              plain.first->weight[0][0].item<float>());
    if (look) look(report);
  }
}

// In fp16 from values before the rounding.
TEST(TorchEngine, TrainsAsItsPartsDo) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16})
    for (const int world : {1, 2})
      run(world, [&](comm::Communicator& comm) {
        expect_same_bits(comm, dtype, {}, [](const auto& report) {
          EXPECT_EQ(report.late_elements, 0u);  // every hook has fired
          EXPECT_EQ(report.waited_for, "");
        });
      });
}

TEST(TorchEngine, ALayerThatOneRankDoesNotUseCountsAsZero) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16})
    run(2, [&](comm::Communicator& comm) {
      const bool uses_side = comm.rank() == 0;
      expect_same_bits(
          comm, dtype, [&](Net& net) { net.uses_side = uses_side; },
          [&](const auto& report) {
            EXPECT_EQ(report.late_elements > 0, !uses_side);
            EXPECT_EQ(report.waited_for, uses_side ? "" : "side.bias");
          });
    });
}

TEST(TorchEngine, LeavesFrozenParametersAlone) {
  run(2, [](comm::Communicator& comm) {
    at::Tensor frozen;
    at::Tensor before;
    expect_same_bits(
        comm, DType::kFloat32,
        [&](Net& net) {
          net.second->weight.set_requires_grad(false);
          const ::torch::NoGradGuard no_grad;
          net.second->weight.fill_(0.02);
          frozen = net.second->weight;
          before = frozen.clone();
        },
        [&](const auto& report) {
          EXPECT_EQ(report.late_elements, 0u);
          EXPECT_TRUE(frozen.equal(before));
        });
    Net net;
    net.second->weight.set_requires_grad(false);
    Engine engine(net, comm, config_of());
    // Weights and biases, but for the frozen one; "tied" counts once.
    EXPECT_EQ(engine.layout().parameters().size(), 8u);
  });
}

TEST(TorchEngine, SumsWithoutSync) {
  run(2, [](comm::Communicator& comm) {
    Net plain;
    Net net;
    ByHand hand(comm, plain);
    Engine engine(net, comm, config_of());
    for (int t = 1; t <= 3; ++t) {
      hand.step({t, t + 10, t + 20});
      const auto before = comm.counters().bytes_sent;
      {
        const auto accumulation = engine.no_sync();
        EXPECT_FALSE(step(engine, net, comm.rank(), t).at_boundary);
        EXPECT_FALSE(step(engine, net, comm.rank(), t + 10).at_boundary);
        EXPECT_EQ(comm.counters().bytes_sent, before);
      }
      EXPECT_TRUE(step(engine, net, comm.rank(), t + 20).applied);
      ASSERT_EQ(floats(engine.params()), hand.params());
    }
  });
}

TEST(TorchEngine, EvaluatesWithoutGradients) {
  run(2, [](comm::Communicator& comm) {
    Net net;
    Engine engine(net, comm, config_of());
    step(engine, net, comm.rank(), 1);
    {
      const auto evaluation = engine.evaluation();
      EXPECT_FALSE(loss_of(net, comm, 1).requires_grad());
      expect_error(ErrorCode::kFailedPrecondition, {"inside an evaluation"},
                   [&] { engine.step(); });
    }
    EXPECT_TRUE(loss_of(net, comm, 1).requires_grad());
  });
}

TEST(TorchEngineErrors, TheLossMustBeAScalarThatScalesInFp32) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16})
    run(1, [&](comm::Communicator& comm) {
      Net plain;
      Net net;
      ByHand hand(comm, plain, dtype);
      Engine engine(net, comm, config_of(dtype));
      const auto refuses = [&](std::initializer_list<std::string_view> parts,
                               const at::Tensor& loss) {
        expect_invalid(parts, [&] { engine.backward(loss); });
      };
      refuses({"float32", "logits.to(torch::kFloat)", "Half"},
              loss_of(net, comm, 1).to(at::kHalf));
      refuses({"float32", "BFloat16"}, loss_of(net, comm, 1).to(at::kBFloat16));
      refuses({"a scalar"}, net.first->bias * 2);
      refuses({"a scalar"}, at::Tensor());
      refuses({"from the module's parameters"}, loss_of(net, comm, 1).detach());
      hand.step({1}, engine.core().loss_scale());
      engine.backward(loss_of(net, comm, 1).to(at::kDouble));
      engine.step();
      EXPECT_EQ(floats(engine.params()), hand.params());
    });
}

TEST(TorchEngineErrors, Item52ABackwardOfItsOwnIsNoBackward) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat16})
    run(1, [&](comm::Communicator& comm) {
      Net net;
      Engine engine(net, comm, config_of(dtype));
      loss_of(net, comm, 1).backward();
      for (int again = 0; again < 2; ++again) {
        expect_error(ErrorCode::kFailedPrecondition,
                     {"loss scale", "engine.backward(loss)"},
                     [&] { engine.step(); });
        expect_error(ErrorCode::kFailedPrecondition, {"engine.backward(loss)"},
                     [&] { engine.backward(loss_of(net, comm, 1)); });
      }
    });
}

TEST(TorchEngineErrors, NameWhatWasReplacedAddedOrFrozen) {
  run(1, [](comm::Communicator& comm) {
    Net net;
    Engine engine(net, comm, config_of());
    const auto refuses = [&](std::initializer_list<std::string_view> parts) {
      expect_error(ErrorCode::kFailedPrecondition, parts,
                   [&] { engine.backward(loss_of(net, comm, 1)); });
      expect_error(ErrorCode::kFailedPrecondition, parts,
                   [&] { engine.step(); });
    };
    const auto works = [&] {
      EXPECT_TRUE(step(engine, net, comm.rank(), 1).applied);
    };
    net.side->bias.set_requires_grad(false);
    refuses({"'side.bias'", "frozen"});
    net.side->bias.set_requires_grad(true);
    works();
    // Another one instead of it: their number is the same.
    net.side->bias.set_requires_grad(false);
    net.register_parameter("late", at::ones({3}));
    refuses({"'side.bias'", "frozen"});
    net.side->bias.set_requires_grad(true);
    refuses({"'late'", "added"});
    net.named_parameters()["late"].set_requires_grad(false);
    works();
    net.zero_grad(/*set_to_none=*/false);
    works();
    net.zero_grad();
    refuses({"gradient of 'first.weight' is gone", "engine's step() sets"});
  });
}

TEST(TorchEngineErrors, AnInvalidConfigurationLeavesTheModuleAlone) {
  run(1, [](comm::Communicator& comm) {
    Net net;
    const void* const place = net.first->weight.const_data_ptr();
    config::Config config = config_of(DType::kFloat16);
    config.gradient_clipping = -1;
    expect_invalid({"gradient_clipping"},
                   [&] { const Engine engine(net, comm, config); });
    EXPECT_EQ(net.first->weight.const_data_ptr(), place);
    EXPECT_EQ(net.first->weight.scalar_type(), at::kFloat);
  });
}

TEST(TorchEngine, TheModuleMayOutliveIt) {
  run(1, [](comm::Communicator& comm) {
    Net net;
    {
      Engine engine(net, comm, config_of());
      engine.backward(loss_of(net, comm, 1));
    }
    net.zero_grad();
    loss_of(net, comm, 1).backward();
    EXPECT_GT(net.first->weight.grad().count_nonzero().item<int>(), 0);
    Engine another(net, comm, config_of());
    EXPECT_TRUE(step(another, net, comm.rank(), 1).applied);
  });
}

}  // namespace
}  // namespace thinwire::torch::engine_test
