// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/module_memory.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "support/errors.h"
#include "support/folder.h"
#include "support/ranks.h"
#include "thinwire/torch/engine.h"

namespace thinwire::torch::module_memory_test {
namespace {

namespace nn = ::torch::nn;
using test::expect_error;
using test::expect_invalid;

// Sizes that are no multiples of a vector: 33 x 7, 33, 5 x 33, 3 x 2.
struct TiedNet : nn::Module {
  TiedNet() {
    first = register_module("first", nn::Linear(7, 33));
    second = register_module("second",
                             nn::Linear(nn::LinearOptions(33, 5).bias(false)));
    idle = register_parameter("idle", ::torch::ones({3, 2}));
  }
  at::Tensor forward(const at::Tensor& x) {
    return second->forward(at::tanh(first->forward(x)));
  }

  nn::Linear first = nullptr;
  nn::Linear second = nullptr;
  at::Tensor idle;
};

std::vector<float> copy(View view) {
  const auto values = view.as<float>();
  return {values.begin(), values.end()};
}

void run_backward(TiedNet& net) {
  net.forward(::torch::ones({4, 7})).square().sum().backward();
}

TEST(ModuleMemory, LaysParametersOutInTheirOrder) {
  TiedNet net;
  ModuleMemory memory(net);
  const auto parameters = memory.layout().parameters();
  ASSERT_EQ(parameters.size(), 4u);
  EXPECT_EQ(memory.layout().size(), 33u * 7 + 33 + 5 * 33 + 6);
  // libtorch names a module's own parameters before those of its parts.
  EXPECT_EQ(parameters[0].name, "idle");
  EXPECT_EQ(parameters[1].name, "first.weight");
  EXPECT_EQ(parameters[1].shape, (std::vector<std::size_t>{33, 7}));
  EXPECT_EQ(parameters[3].offset, 6u + 33 * 7 + 33);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.params().data()) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.grads().data()) % 64, 0u);
}

TEST(ModuleMemory, ParametersKeepTheirValuesAndBecomeViews) {
  TiedNet net;
  const at::Tensor before = net.second->weight.detach().clone();
  ModuleMemory memory(net);
  EXPECT_TRUE(net.second->weight.equal(before));
  const Parameter& place = memory.layout().parameter("second.weight");
  const auto values = memory.params().subview(place.offset, place.size);
  values.as<float>()[34] = 123.0f;  // row 1, column 1
  EXPECT_EQ(net.second->weight[1][1].item<float>(), 123.0f);
  EXPECT_TRUE(net.second->weight.is_leaf());
  EXPECT_TRUE(net.second->weight.requires_grad());
}

TEST(ModuleMemory, GradientsLandInTheFlatArray) {
  TiedNet plain;
  TiedNet homed;
  {
    const ::torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < plain.parameters().size(); ++i) {
      homed.parameters()[i].copy_(plain.parameters()[i]);
    }
  }
  ModuleMemory memory(homed);
  run_backward(plain);
  run_backward(homed);
  memory.check();
  const Parameter& place = memory.layout().parameter("first.weight");
  const at::Tensor want = plain.first->weight.grad().contiguous();
  const auto have = memory.grads().subview(place.offset, place.size);
  EXPECT_TRUE(std::equal(have.as<float>().begin(), have.as<float>().end(),
                         want.const_data_ptr<float>()));
  // "idle" is not used.
  const Parameter& idle = memory.layout().parameter("idle");
  EXPECT_EQ(copy(memory.grads().subview(idle.offset, idle.size)),
            std::vector<float>(6));
  // Twice the backward, twice the gradient; and then none.
  run_backward(homed);
  EXPECT_EQ(have.as<float>()[0], 2 * want[0][0].item<float>());
  memory.zero_grad();
  EXPECT_EQ(copy(memory.grads()), std::vector<float>(memory.grads().size()));
  memory.check();
}

TEST(ModuleMemory, KeepsExistingGradients) {
  TiedNet net;
  run_backward(net);
  const at::Tensor before = net.first->bias.grad().clone();
  ModuleMemory memory(net);
  EXPECT_TRUE(net.first->bias.grad().equal(before));
  memory.check();
}

TEST(ModuleMemory, LeavesFixedParametersWhereTheyAre) {
  TiedNet net;
  net.first->weight.set_requires_grad(false);
  const float* before = net.first->weight.const_data_ptr<float>();
  ModuleMemory memory(net);
  EXPECT_EQ(memory.layout().parameters().size(), 3u);
  EXPECT_EQ(net.first->weight.const_data_ptr<float>(), before);
}

TEST(ModuleMemory, StridedParametersAreLaidOutRowByRow) {
  nn::Module module;
  at::Tensor weight = module.register_parameter(
      "w", ::torch::arange(6, at::kFloat).view({2, 3}).t());
  ASSERT_FALSE(weight.is_contiguous());
  ModuleMemory memory(module);
  EXPECT_EQ(copy(memory.params()), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  weight.sum().backward();
  memory.check();
  EXPECT_EQ(copy(memory.grads()), std::vector<float>(6, 1.0f));
}

TEST(ModuleMemoryCheck, FindsDroppedGradients) {
  TiedNet net;
  const ModuleMemory memory(net);
  net.zero_grad(/*set_to_none=*/false);
  memory.check();
  net.zero_grad();
  expect_error(ErrorCode::kFailedPrecondition,
               {"gradient of 'idle'", "zero_grad"}, [&] { memory.check(); });
  run_backward(net);
  net.idle.mutable_grad() = ::torch::zeros({3, 2});
  expect_error(ErrorCode::kFailedPrecondition,
               {"gradient of 'idle'", "replaced"}, [&] { memory.check(); });
}

TEST(ModuleMemoryCheck, FindsReplacedParameters) {
  TiedNet net;
  const ModuleMemory memory(net);
  net.to(at::kDouble);
  expect_error(ErrorCode::kFailedPrecondition,
               {"parameter 'idle'", "torch::load", "module.to()"},
               [&] { memory.check(); });
  TiedNet other;
  const ModuleMemory others(other);
  other.first->bias.set_data(::torch::zeros({33}));
  expect_error(ErrorCode::kFailedPrecondition, {"parameter 'first.bias'"},
               [&] { others.check(); });
}

TEST(ModuleMemory, RefusesWhatItCannotHold) {
  nn::Linear mixed(3, 4);
  mixed->bias.set_data(mixed->bias.to(at::kDouble));
  expect_invalid({"'bias'", "Float", "got Double"},
                 [&] { const ModuleMemory memory(*mixed); });
  nn::Module elsewhere;
  elsewhere.register_parameter("weight", ::torch::empty({3}, at::kMeta));
  expect_invalid({"'weight'", "CPU", "got meta"},
                 [&] { const ModuleMemory memory(elsewhere); });
  const nn::Module empty;
  expect_error(ErrorCode::kFailedPrecondition, {"no parameter"},
               [&] { const ModuleMemory memory(empty); });
}

TEST(ModuleMemory, RefusesSparseGradients) {
  nn::Embedding embedding(nn::EmbeddingOptions(10, 4).sparse(true));
  const auto run = [&] {
    embedding->forward(::torch::tensor({1, 2})).sum().backward();
  };
  {
    nn::Embedding with_gradient(nn::EmbeddingOptions(10, 4).sparse(true));
    with_gradient->forward(::torch::tensor({1})).sum().backward();
    expect_invalid({"'weight'", "gradient must be dense"},
                   [&] { const ModuleMemory memory(*with_gradient); });
  }
  const ModuleMemory memory(*embedding);
  expect_invalid({"'weight'", "gradient must be dense", "sparse(false)"}, run);
}

// ---- fp32 parameters in a module of 16 bits

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

TEST(TorchDtypes, LieInSeparateArrays) {
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
  test::expect_invalid({"'last.weight'", "same type as all others, or Float"},
                       [&] { ModuleMemory memory(net); });
}

TEST(TorchDtypes, TrainWithTheSameBitsAtEveryStageAndContinue) {
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
}  // namespace thinwire::torch::module_memory_test
