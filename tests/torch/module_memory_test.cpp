// SPDX-License-Identifier: Apache-2.0
#include "thinwire/torch/module_memory.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "support/errors.h"

namespace thinwire::torch::module_memory_test {
namespace {

namespace nn = ::torch::nn;
using test::expect_error;

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

TEST(ModuleMemory, KeepsGradientsThatAreThere) {
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
  expect_error(ErrorCode::kInvalidArgument, {"'bias'", "Float", "got Double"},
               [&] { const ModuleMemory memory(*mixed); });
  nn::Module elsewhere;
  elsewhere.register_parameter("weight", ::torch::empty({3}, at::kMeta));
  expect_error(ErrorCode::kInvalidArgument, {"'weight'", "CPU", "got meta"},
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
    expect_error(ErrorCode::kInvalidArgument,
                 {"'weight'", "gradient must be dense"},
                 [&] { const ModuleMemory memory(*with_gradient); });
  }
  const ModuleMemory memory(*embedding);
  expect_error(ErrorCode::kInvalidArgument,
               {"'weight'", "gradient must be dense", "sparse(false)"}, run);
}

}  // namespace
}  // namespace thinwire::torch::module_memory_test
