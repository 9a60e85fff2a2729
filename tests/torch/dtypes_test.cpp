// SPDX-License-Identifier: Apache-2.0
// fp32 parameters in a module of 16 bits.
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <map>
#include <string>

#include "support/errors.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "thinwire/torch/engine.h"

namespace thinwire::torch::dtypes_test {
namespace {

// The norm and "scale" are fp32, and so are a buffer and a frozen parameter.
struct MixedNet : ::torch::nn::Module {
  explicit MixedNet(at::ScalarType dtype = at::kBFloat16) {
    scale = register_parameter("scale", ::torch::full({1}, 1.3));
    first = register_module("first", ::torch::nn::Linear(7, 33));
    norm = register_module(
        "norm", ::torch::nn::LayerNorm(::torch::nn::LayerNormOptions({33})));
    last = register_module("last", ::torch::nn::Linear(33, 1));
    shift = register_buffer("shift", ::torch::full({33}, 1.0 / 3));
    const ::torch::NoGradGuard no_grad;
    double phase = 1;
    for (at::Tensor& p : parameters())
      p.copy_(at::sin(at::arange(p.numel(), at::kDouble) * phase++).view_as(p));
    first->to(dtype);
    last->to(dtype);
  }
  at::Tensor loss(int rank, int step) {
    const at::Tensor x =
        at::sin(at::arange(28, at::kFloat) * (0.3 + step + 0.17 * rank))
            .view({4, 7});
    at::Tensor h = first->forward(x.to(first->weight.scalar_type()));
    h = at::tanh(norm->forward(h.to(at::kFloat)) + shift);
    h = last->forward(h.to(last->weight.scalar_type()));
    return (h.to(at::kFloat) * scale).square().mean();
  }
  std::map<std::string, at::Tensor> values() const {
    std::map<std::string, at::Tensor> all;
    for (const auto& p : named_parameters())
      all[p.key()] = p.value().detach().clone();
    return all;
  }

  at::Tensor scale;
  ::torch::nn::Linear first = nullptr;
  ::torch::nn::LayerNorm norm = nullptr;
  ::torch::nn::Linear last = nullptr;
  at::Tensor shift;
};

bool is_wide(const std::string& name) {
  return name == "scale" || name.starts_with("norm.");
}

config::Config two_dtypes(DType dtype, int stage) {
  config::Config config{.optimizer = optim::AdamOptions{.learning_rate = 0.01}};
  config.precision.dtype = dtype;
  config.precision.loss_scale.initial_scale = 256;
  config.zero.stage = stage;
  return config;
}

void expect_same(const MixedNet& a, const MixedNet& b) {
  const auto want = b.values();
  for (const auto& [name, values] : a.values())
    EXPECT_TRUE(at::equal(values, want.at(name))) << name;
}

TEST(TorchDtypes, LieInArraysOfTheirOwn) {
  MixedNet net;
  const auto before = net.values();
  ModuleMemory memory(net);
  EXPECT_EQ(memory.num_wide(), 3u);
  EXPECT_EQ(memory.layout().parameters().front().name, "first.weight");
  EXPECT_EQ(memory.layout().parameters().back().name, "norm.bias");
  EXPECT_EQ(memory.params().first_size(), 33u * 7 + 33 + 33 + 1);
  EXPECT_EQ(memory.params().size(), 33u * 7 + 33 + 33 + 1 + 1 + 2 * 33);
  net.loss(0, 1).backward();
  memory.check();
  for (const auto& [name, values] : net.values()) {
    EXPECT_EQ(values.scalar_type(), is_wide(name) ? at::kFloat : at::kBFloat16);
    EXPECT_TRUE(at::equal(values, before.at(name))) << name;
  }
  const Parameter& place = memory.layout().parameter("norm.bias");
  const auto gradient =
      memory.grads().subview(place.offset, place.size).as<float>();
  EXPECT_EQ(gradient[5], net.norm->bias.grad()[5].item<float>());
  memory.zero_grad();
  EXPECT_EQ(net.norm->bias.grad().abs().sum().item<float>(), 0);
}

TEST(TorchDtypes, TwoOf16BitsAreRefused) {
  MixedNet net;
  net.last->to(at::kHalf);
  test::expect_error(ErrorCode::kInvalidArgument,
                     {"'last.weight'", "same type as all others, or Float"},
                     [&] { ModuleMemory memory(net); });
}

TEST(TorchDtypes, TrainWithTheSameBitsAtEveryStageAndGoOn) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16})
    for (const int ranks : {1, 2, 3}) {
      const test::Folder folder;
      comm::run_local_ranks(ranks, [&](comm::Communicator& comm) {
        const at::ScalarType type = ModuleMemory::scalar_type(dtype);
        MixedNet want(type);
        Engine engine(want, comm, two_dtypes(dtype, 0));
        for (int t = 0; t < 3; ++t) {
          engine.backward(want.loss(comm.rank(), t));
          EXPECT_TRUE(engine.step().applied);
        }
        EXPECT_EQ(want.shift.scalar_type(), at::kFloat);
        for (const int stage : {1, 2}) {
          MixedNet net(type);
          Engine sharded(net, comm, two_dtypes(dtype, stage));
          for (int t = 0; t < 3; ++t) {
            sharded.backward(net.loss(comm.rank(), t));
            EXPECT_TRUE(sharded.step().applied);
          }
          expect_same(net, want);
          EXPECT_EQ(net.norm->weight.scalar_type(), at::kFloat);
          sharded.save(folder.in(std::to_string(stage)), {},
                       {.durable = false});
          MixedNet resumed(type);
          Engine again(resumed, comm, two_dtypes(dtype, 3 - stage));
          again.load(folder.in(std::to_string(stage)));
          expect_same(resumed, want);
        }
      });
    }
}

}  // namespace
}  // namespace thinwire::torch::dtypes_test
