// SPDX-License-Identifier: Apache-2.0
// The test device for modules, and functions that backward calls. A program
// includes it once, because the device's operators are global.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
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

// What losses and a module's parameters are.
inline std::vector<float> losses_and(std::vector<float> losses,
                                     const nn::Module& module) {
  const std::vector<float> values = values_of(module);
  losses.insert(losses.end(), values.begin(), values.end());
  return losses;
}

struct Case {
  std::string name;
  config::Config config;
  std::size_t bucket_bytes = 2048;  // of an engine with leaders
};

inline Case case_of(const std::string& name, DType dtype,
                    config::OptimizerConfig optimizer, int stage = 0,
                    std::int64_t window = 1) {
  config::Config config = config_of(dtype, window);
  config.optimizer = std::move(optimizer);
  config.zero.stage = stage;
  return {name + " " + std::string(to_string(dtype)), config};
}

// Of engines with leaders and without them.
inline std::vector<Case> common_cases(DType dtype) {
  std::vector<Case> all{
      case_of("Adam", dtype, kAdam),
      case_of("Adam, windows of 3", dtype, kAdam, 0, 3),
      case_of("1-bit Adam", dtype,
              optim::OnebitAdamOptions{.learning_rate = 0.01,
                                       .freeze = {.step = 4}}),
      case_of("0/1 Adam", dtype,
              optim::ZeroOneAdamOptions{.learning_rate = 0.01,
                                        .var_freeze_step = 4,
                                        .var_update_scaler = 2,
                                        .local_step_scaler = 3}),
      case_of("LAMB", dtype, optim::LambOptions{.learning_rate = 0.01}),
      case_of("ZeRO-1", dtype, kAdam, 1),
      case_of("ZeRO-2", dtype, kAdam, 2),
      case_of("ZeRO-2, windows of 2", dtype, kAdam, 2, 2)};
  if (dtype != DType::kFloat16)  // which lean 1-bit Adam refuses
    all.push_back(case_of("lean 1-bit Adam", dtype,
                          lean::LeanOnebitAdamOptions{.learning_rate = 0.01,
                                                      .freeze = {.step = 4}}));
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
