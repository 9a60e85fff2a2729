// SPDX-License-Identifier: Apache-2.0
// A small network, and its training put together by hand.
#pragma once

#include <torch/nn/modules/linear.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "support/ranks.h"
#include "thinwire/kernels/cast.h"
#include "thinwire/optim/data_parallel.h"
#include "thinwire/precision/mixed_precision.h"
#include "thinwire/torch/engine.h"

namespace thinwire::torch {

namespace nn = ::torch::nn;
inline const optim::AdamOptions kAdam{.learning_rate = 0.01,
                                      .weight_decay = 0.1};

// Two buckets of gradients; "tied" is used twice, "side" on demand.
struct Net : nn::Module {
  explicit Net(double shift = 0) {
    first = register_module("first", nn::Linear(20, 100));
    second = register_module("second", nn::Linear(100, 150));
    tied = register_module("tied", nn::Linear(nn::LinearOptions(150, 150)));
    last = register_module("last",
                           nn::Linear(nn::LinearOptions(150, 3).bias(false)));
    side = register_module("side", nn::Linear(3, 3));
    register_module("tied_again", tied);
    const ::torch::NoGradGuard no_grad;
    double phase = 1 + shift;
    for (at::Tensor& p : parameters())
      p.copy_(at::sin(at::arange(p.numel(), at::kDouble) * phase++).view_as(p) *
              0.1);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = at::tanh(second->forward(at::tanh(first->forward(x))));
    y = last->forward(tied->forward(at::tanh(tied->forward(y))));
    return uses_side ? side->forward(y) : y;
  }

  nn::Linear first = nullptr;
  nn::Linear second = nullptr;
  nn::Linear tied = nullptr;
  nn::Linear last = nullptr;
  nn::Linear side = nullptr;
  bool uses_side = true;
};

inline at::Tensor input(const at::Device& device, int rank, int batch) {
  return at::sin(at::arange(80, at::kFloat) * (0.3 + batch + 0.17 * rank))
      .view({4, 20})
      .to(device);
}

template <class Module>
at::Tensor loss_of(Module& net, int rank, int batch) {
  const at::Tensor& weight = net.last->weight;
  const at::Tensor x = input(weight.device(), rank, batch);
  return net.forward(x.to(weight.scalar_type())).to(at::kFloat).square().mean();
}
inline at::Tensor loss_of(Net& net, const comm::Communicator& comm, int batch) {
  return loss_of(net, comm.rank(), batch);
}

template <class Engine, class Module>
engine::EngineReport step(Engine& engine, Module& net, int rank, int batch) {
  engine.backward(loss_of(net, rank, batch));
  return engine.step();
}

inline config::Config config_of(DType dtype = DType::kFloat32,
                                std::int64_t accumulation_steps = 1) {
  config::Config config{.optimizer = kAdam,
                        .gradient_accumulation_steps = accumulation_steps};
  config.precision.dtype = dtype;
  config.precision.loss_scale.initial_scale = 1024;
  config.comm.bucket_elements = 16384;
  return config;
}

inline std::vector<float> floats(ConstView view) {
  std::vector<float> values(view.size());
  kernels::convert(view, values);
  return values;
}

// The same training with its parts put together by hand; fp32 or fp16.
struct ByHand {
  ByHand(comm::Communicator& c, Net& n, DType dtype = DType::kFloat32)
      : comm(c), net(n) {
    std::vector<at::Tensor> before;
    for (const at::Tensor& p : net.parameters())
      if (p.requires_grad()) before.push_back(p.detach().clone().flatten());
    const at::Tensor initial = at::cat(before);
    memory = std::make_unique<ModuleMemory>(
        net, GroupOf{},
        dtype == DType::kFloat32 ? std::nullopt : std::optional(dtype));
    optimizer = std::make_unique<optim::DataParallel>(
        comm, std::make_unique<optim::Adam>(memory->layout(), kAdam));
    if (dtype == DType::kFloat32) return;
    optimizer = std::make_unique<precision::MixedPrecision>(
        comm, memory->layout(), std::move(optimizer),
        ConstView(initial.const_data_ptr<float>(), memory->layout().size(),
                  DType::kFloat32),
        precision::MixedPrecisionOptions{
            .dtype = dtype, .loss_scale = {.initial_scale = 1024}});
  }
  // Losses are multiplied by `factor` and summed.
  optim::StepReport step(const std::vector<int>& batches, double factor = 1) {
    memory->zero_grad();
    for (const int batch : batches)
      (loss_of(net, comm, batch) * factor).backward();
    memory->check();
    return optimizer->step(memory->params(), memory->grads());
  }
  [[nodiscard]] std::vector<float> params() const {
    return floats(memory->params());
  }

  comm::Communicator& comm;
  Net& net;
  std::unique_ptr<ModuleMemory> memory;
  std::unique_ptr<optim::Optimizer> optimizer;
};

// Each rank is a thread with its own module; rank 0's values are to count.
inline void run(int world,
                const std::function<void(comm::Communicator&)>& body) {
  at::set_num_threads(1);
  comm::run_local_ranks(
      world,
      [&](comm::Communicator& comm) {
        at::set_num_threads(1);
        body(comm);
      },
      test::kPatient);
}

}  // namespace thinwire::torch
