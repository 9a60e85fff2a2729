// SPDX-License-Identifier: Apache-2.0
// ZeRO under LibTorch: the same bits as without, and where gradients are.
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/errors.h"
#include "thinwire/core/memory.h"
#include "torch/net.h"

namespace thinwire::torch::zero_test {
namespace {

// Besides Net's: two branches whose order is the caller's, a frozen layer, and
// an empty parameter in the middle that takes part in nothing.
struct ZeroNet : Net {
  explicit ZeroNet(int rank = 0) : Net(rank), swaps(rank % 2 == 1) {
    nothing = register_parameter("nothing", at::ones({4, 0}));
    left = register_module("left", nn::Linear(20, 30));
    right = register_module("right", nn::Linear(20, 30));
    frozen = register_module("frozen", nn::Linear(30, 20));
    const ::torch::NoGradGuard no_grad;
    double phase = 40 + rank;
    for (nn::Linear& layer : {std::ref(left), std::ref(right)})
      for (at::Tensor& p : layer->parameters())
        p.copy_(
            at::sin(at::arange(p.numel(), at::kDouble) * phase++).view_as(p));
    for (at::Tensor& p : frozen->parameters()) {
      p.copy_(at::cos(at::arange(p.numel(), at::kDouble)).view_as(p));
      p.set_requires_grad(false);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor a;
    at::Tensor b;
    if (swaps) b = right->forward(x);
    a = left->forward(x);
    if (!swaps) b = right->forward(x);
    const at::Tensor y = at::tanh(a * b);
    // Frozen parameters keep their type, whatever the others are rounded to.
    return Net::forward(at::linear(y, frozen->weight.to(y.scalar_type())));
  }

  nn::Linear left = nullptr;
  nn::Linear right = nullptr;
  nn::Linear frozen = nullptr;
  at::Tensor nothing;
  bool swaps = false;
};

// Buckets that are smaller than some parameters; two groups.
config::Config zero_config(int stage, DType dtype = DType::kFloat32,
                           std::int64_t accumulation_steps = 1) {
  config::Config config = config_of(dtype, accumulation_steps);
  optim::AdamOptions adam = kAdam;
  adam.groups = {{}, {.learning_rate = 0.003, .weight_decay = 0}};
  config.optimizer = adam;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 5000;
  return config;
}

std::size_t by_kind(std::string_view name, const at::Tensor& /*value*/) {
  return name.ends_with("bias") ? 1 : 0;
}

std::vector<std::byte> bytes_of(ConstView view) {
  const auto* begin = static_cast<const std::byte*>(view.data());
  return {begin, begin + view.bytes()};
}

// One rank's module and engine; rank 0's values are to count.
struct Trained {
  Trained(comm::Communicator& c, const config::Config& config)
      : comm(c), net(c.rank()), engine(net, c, config, by_kind) {
    net.uses_side = c.rank() == 0;
  }
  void backward(int batch) {
    engine.backward(loss_of(net, comm.rank(), batch));
  }
  engine::EngineReport step(int batch) {
    backward(batch);
    return engine.step();
  }

  comm::Communicator& comm;
  ZeroNet net;
  Engine engine;
};

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// Calls train(engine, number of the step) for both and compares every bit.
void expect_same(
    comm::Communicator& comm, const config::Config& plain,
    const config::Config& sharded,
    const std::function<engine::EngineReport(Trained&, int)>& train) {
  Trained want(comm, plain);
  Trained got(comm, sharded);
  for (int t = 1; t <= 4; ++t) {
    const engine::EngineReport expected = train(want, t);
    const engine::EngineReport report = train(got, t);
    EXPECT_EQ(report.grad_norm, expected.grad_norm);
    EXPECT_EQ(report.clip_factor, expected.clip_factor);
    EXPECT_EQ(report.loss_scale, expected.loss_scale);
    EXPECT_EQ(report.applied, expected.applied);
    ASSERT_EQ(bytes_of(got.engine.params()), bytes_of(want.engine.params()))
        << "stage " << sharded.zero.stage << ", rank " << comm.rank() << " of "
        << comm.size() << ", step " << t;
    for (const Parameter& p : want.engine.layout().parameters())
      ASSERT_EQ(got.engine.core().whole_values().parameter(p.name),
                want.engine.core().whole_values().parameter(p.name))
          << p.name;
  }
  EXPECT_TRUE(got.net.frozen->weight.equal(want.net.frozen->weight));
}

class TorchZero : public ::testing::TestWithParam<std::tuple<int, DType>> {};

INSTANTIATE_TEST_SUITE_P(
    All, TorchZero,
    ::testing::Combine(::testing::Values(1, 2, 3), ::testing::ValuesIn(kTypes)),
    [](const auto& tested) {
      return std::string(to_string(std::get<1>(tested.param))) + "_w" +
             std::to_string(std::get<0>(tested.param));
    });

// The odd ranks' gradients come in another order; all but the first rank have
// none of "side".
TEST_P(TorchZero, Item22StagesHaveTheSameBits) {
  const auto& [world, dtype] = GetParam();
  for (const double clipping : {0.0, 1e-4})
    for (const int stage : {1, 2})
      run(world, [&, type = dtype](comm::Communicator& comm) {
        config::Config plain = zero_config(0, type);
        config::Config sharded = zero_config(stage, type);
        plain.gradient_clipping = sharded.gradient_clipping = clipping;
        expect_same(comm, plain, sharded, [&](Trained& trained, int t) {
          const engine::EngineReport report = trained.step(t);
          EXPECT_EQ(report.clip_factor<1, clipping> 0);
          return report;
        });
      });
}

// ---- where gradients are

TEST(TorchZeroGradients, AreGoneAfterBackwardAtStage2) {
  for (const DType dtype : kTypes)
    run(2, [&](comm::Communicator& comm) {
      Trained trained(comm, zero_config(2, dtype));
      const std::size_t n = trained.engine.layout().size();
      for (int t = 1; t <= 2; ++t) {
        trained.backward(t);
        for (const at::Tensor& p : trained.net.parameters())
          EXPECT_FALSE(p.grad().defined());
        EXPECT_LT(memory_use().now_of(MemoryKind::kGradients),
                  n * size_of(dtype) * 3 / 4);  // half, but for the grid
        trained.engine.step();
        for (const at::Tensor& p : trained.net.parameters())
          EXPECT_FALSE(p.grad().defined());
      }
    });
}

// One whole gradient at a time, besides the shard.
TEST(TorchZeroGradients, ComeOneAtATimeAtStage2) {
  run(2, [](comm::Communicator& comm) {
    Trained trained(comm, zero_config(2));
    int alive = 0;
    for (const at::Tensor& p : trained.net.parameters())
      if (p.requires_grad())
        p.register_hook([&](const at::Tensor&) {
          for (const at::Tensor& other : trained.net.parameters())
            if (other.grad().defined()) ++alive;
        });
    trained.backward(1);
    EXPECT_EQ(alive, 0);
    trained.engine.step();
  });
}

TEST(TorchZeroGradients, KeepTheirPlaceAtStage1WithoutWiderSums) {
  for (const DType dtype : kTypes)
    for (const std::int64_t backwards : {1, 2})
      run(2, [&](comm::Communicator& comm) {
        Trained trained(comm, zero_config(1, dtype, backwards));
        const bool keeps = dtype == DType::kFloat32 || backwards == 1;
        trained.backward(1);
        EXPECT_EQ(trained.net.first->weight.grad().defined(), keeps);
        const std::size_t width = backwards == 1 ? size_of(dtype) : 4;
        EXPECT_NEAR(
            static_cast<double>(memory_use().now_of(MemoryKind::kGradients)),
            static_cast<double>(trained.engine.layout().size() * width), 64);
      });
}

TEST(TorchZeroGradients, ThatWereThereAreDropped) {
  run(1, [](comm::Communicator& comm) {
    ZeroNet net;
    loss_of(net, 0, 5).backward();
    Engine engine(net, comm, zero_config(2), by_kind);
    EXPECT_FALSE(net.first->weight.grad().defined());
    Trained want(comm, zero_config(0));
    step(engine, net, 0, 1);
    want.step(1);
    EXPECT_EQ(bytes_of(engine.params()), bytes_of(want.engine.params()));
  });
}

// ---- whole values

TEST(TorchZeroValues, ParametersOfSeveralTypesBecomeOne) {
  comm::run_local_ranks(2, [](comm::Communicator& comm) {
    std::vector<at::Tensor> trained;
    for (const int stage : {0, 1, 2}) {
      ::torch::nn::Sequential net(::torch::nn::Linear(3, 5),
                                  ::torch::nn::Linear(5, 2));
      {
        // Not drawn: the generator is shared by all ranks.
        const ::torch::NoGradGuard no_grad;
        for (const at::Tensor& p : net->parameters())
          p.copy_(at::linspace(-1, 1, p.numel()).view(p.sizes()));
      }
      net->ptr(1)->to(at::kBFloat16);
      config::Config config{.optimizer =
                                optim::AdamOptions{.learning_rate = 0.1}};
      config.zero.stage = stage;
      Engine engine(*net, comm, config);
      for (const at::Tensor& parameter : net->parameters())
        EXPECT_EQ(parameter.scalar_type(), at::kFloat);
      engine.backward(net->forward(::torch::ones({4, 3})).sum());
      EXPECT_TRUE(engine.step().applied);
      trained.push_back(net->parameters()[2].detach().clone());
    }
    EXPECT_TRUE(trained[1].equal(trained[0]));
    EXPECT_TRUE(trained[2].equal(trained[0]));
  });
}

// ---- backwards that fail, and what is refused

// A backward that throws at its beginning, or where the layout's last
// parameters have their gradients, which leave first.
void fail(Trained& trained, bool at_once) {
  ZeroNet& net = trained.net;
  const at::Tensor x =
      at::ones({4, 20}, net.first->weight.options().requires_grad(false));
  const at::Tensor y = at::tanh(net.first->forward(x));
  const at::Tensor z =
      net.last->forward(net.tied->forward(net.second->forward(y)));
  const at::Tensor loss =
      (net.side->forward(z).sum() + net.left->forward(x).sum() +
       net.right->forward(x).sum())
          .to(at::kFloat);
  (at_once ? loss : y).register_hook([](const at::Tensor&) -> void {
    throw std::runtime_error("no gradient of this");
  });
  trained.engine.backward(loss);
}

TEST(TorchZeroErrors, AFailedBackwardLeavesNothingBehind) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const int stage : {0, 1, 2})
      for (const std::int64_t backwards : {1, 2})
        for (const int world : {1, 2})
          run(world, [&](comm::Communicator& comm) {
            const auto config = zero_config(stage, dtype, backwards);
            Trained want(comm, config);
            Trained got(comm, config);
            for (int t = 1; t <= 3; ++t) {
              // Of one rank nothing leaves, so its window may have begun.
              if (world == 1 && backwards == 2 && t > 1) {
                got.backward(77);
                got.engine.step();
              }
              EXPECT_THROW(fail(got, world > 1), std::runtime_error);
              test::expect_error(ErrorCode::kFailedPrecondition,
                                 {"no backward"}, [&] { got.engine.step(); });
              for (Trained* trained : {&want, &got})
                for (int micro = 0; micro < backwards; ++micro)
                  trained->step(t + 10 * micro);
              ASSERT_EQ(bytes_of(got.engine.params()),
                        bytes_of(want.engine.params()));
            }
          });
}

TEST(TorchZeroErrors, AGradientThatIsSetFromOutside) {
  run(1, [](comm::Communicator& comm) {
    Trained trained(comm, zero_config(2));
    at::Tensor& weight = trained.net.first->weight;
    weight.mutable_grad() = at::zeros_like(weight);
    test::expect_error(ErrorCode::kFailedPrecondition,
                       {"gradient of 'first.weight'", "released"},
                       [&] { trained.backward(1); });
    trained.net.zero_grad();
    EXPECT_TRUE(trained.step(1).applied);
  });
}

}  // namespace
}  // namespace thinwire::torch::zero_test
