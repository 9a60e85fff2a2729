// SPDX-License-Identifier: Apache-2.0
// The test device for modules, and functions that backward calls. A program
// includes it once, because the device's operators are global.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <vector>

#include "device/operators.h"
#include "torch/net.h"

namespace thinwire::torch {

// Ranks share the device's streams, so each has a device of its own.
inline at::Device device_of(int rank = 0) {
  static const bool is_named = [] {
    c10::register_privateuse1_backend("fence");
    return true;
  }();
  static_cast<void>(is_named);
  return at::Device(at::kPrivateUse1, static_cast<at::DeviceIndex>(rank));
}

inline std::vector<float> values_of(const nn::Module& module) {
  std::vector<float> all;
  for (const at::Tensor& p : module.parameters()) {
    const at::Tensor on_host = p.detach().to(at::kCPU, at::kFloat).contiguous();
    const float* from = on_host.const_data_ptr<float>();
    all.insert(all.end(), from, from + on_host.numel());
  }
  return all;
}

// Fails in backward.
struct Breaks : ::torch::autograd::Function<Breaks> {
  static at::Tensor forward(::torch::autograd::AutogradContext*,
                            const at::Tensor& x) {
    return x.clone();
  }
  static ::torch::autograd::variable_list backward(
      ::torch::autograd::AutogradContext*, ::torch::autograd::variable_list) {
    throw std::runtime_error("breaks");
  }
};

// Checkpointing as PyTorch's with use_reentrant=True: backward computes the
// forward again, and calls backward() of that. LibTorch has no other kind.
struct Recomputed : ::torch::autograd::Function<Recomputed> {
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  // `body` must live until backward has ended.
  static at::Tensor forward(::torch::autograd::AutogradContext* context,
                            const at::Tensor& x, const Forward* body) {
    context->save_for_backward({x});
    context->saved_data["body"] = reinterpret_cast<std::intptr_t>(body);
    const at::AutoGradMode off(false);
    return (*body)(x);
  }
  static ::torch::autograd::variable_list backward(
      ::torch::autograd::AutogradContext* context,
      ::torch::autograd::variable_list gradients) {
    const at::Tensor x =
        context->get_saved_variables()[0].detach().requires_grad_();
    const auto* const body =
        reinterpret_cast<const Forward*>(context->saved_data["body"].toInt());
    const at::AutoGradMode on(true);
    (*body)(x).backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace thinwire::torch
