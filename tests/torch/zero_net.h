// SPDX-License-Identifier: Apache-2.0
// A network with what shards find hard, and its training at any stage.
#pragma once

#include <functional>
#include <vector>

#include "torch/net.h"

namespace thinwire::torch {

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
inline config::Config zero_config(int stage, DType dtype = DType::kFloat32,
                                  std::int64_t accumulation_steps = 1) {
  config::Config config = config_of(dtype, accumulation_steps);
  optim::AdamOptions adam = kAdam;
  adam.groups = {{}, {.learning_rate = 0.003, .weight_decay = 0}};
  config.optimizer = adam;
  config.zero.stage = stage;
  config.zero.reduce_bucket_size = 5000;
  return config;
}

inline std::size_t by_kind(std::string_view name, const at::Tensor& /*value*/) {
  return name.ends_with("bias") ? 1 : 0;
}

inline std::vector<std::byte> bytes_of(ConstView view) {
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

}  // namespace thinwire::torch
