// SPDX-License-Identifier: Apache-2.0
// A module on the test device, whose memory the host cannot read, has the bits
// of the CPU. This is a program of its own, because the device's operators are
// global.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "torch/device.h"
#include "torch/net.h"

namespace thinwire::torch::device_test {
namespace {

struct Case {
  std::string name;
  config::Config config;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const std::string of = std::string(" ") + std::string(to_string(dtype));
    const auto add = [&](const std::string& name, config::Config config) {
      config.precision.dtype = dtype;
      config.precision.loss_scale.initial_scale = 1024;
      config.comm.bucket_elements = 16384;
      all.push_back({name + of, config});
    };
    add("Adam", {.optimizer = kAdam});
    add("Adam, accumulation",
        {.optimizer = kAdam, .gradient_accumulation_steps = 3});
    add("LAMB", {.optimizer = optim::LambOptions{.learning_rate = 0.01}});
    add("1-bit Adam", {.optimizer = optim::OnebitAdamOptions{
                           .learning_rate = 0.01, .freeze = {.step = 6}}});
    add("1-bit Adam, warm-up in 8 bits",
        {.optimizer = optim::OnebitAdamOptions{
             .learning_rate = 0.01, .freeze = {.step = 6, .warmup_bits = 8}}});
    add("1-bit LAMB", {.optimizer = optim::OnebitLambOptions{
                           .learning_rate = 0.01, .freeze = {.step = 6}}});
    add("0/1 Adam",
        {.optimizer = optim::ZeroOneAdamOptions{.learning_rate = 0.01,
                                                .var_freeze_step = 6,
                                                .var_update_scaler = 2,
                                                .local_step_scaler = 8}});
    for (const int stage : {1, 2}) {
      config::Config config{.optimizer = kAdam};
      config.zero.stage = stage;
      add("ZeRO-" + std::to_string(stage), config);
    }
    config::Config accumulated{.optimizer = kAdam,
                               .gradient_accumulation_steps = 2};
    accumulated.zero.stage = 2;
    add("ZeRO-2, accumulation", accumulated);
    for (const int stage : {1, 2}) {
      config::Config few_bits{.optimizer = kAdam};
      few_bits.zero.stage = stage;
      few_bits.zero.wire = {.bits_up = 4, .bits_down = 4};
      add("ZeRO-" + std::to_string(stage) + ", 4 bits", few_bits);
    }
    config::Config outer{.optimizer = kAdam};
    outer.outer = {.sync_every = 3, .warmup_steps = 2};
    add("outer loop", outer);
    if (dtype == DType::kFloat16) continue;  // lean 1-bit Adam refuses it
    add("lean 1-bit Adam", {.optimizer = lean::LeanOnebitAdamOptions{
                                .learning_rate = 0.01, .freeze = {.step = 6}}});
  }
  return all;
}

std::vector<float> train(comm::Communicator& comm, const Case& which,
                         const at::Device& device, int steps) {
  Net net(comm.rank());
  net.to(device);
  Engine engine(net, comm, which.config);
  std::vector<float> losses;
  for (int t = 1; t <= steps; ++t) {
    net.uses_side = t % 3 != 0 || comm.rank() == 0;
    const at::Tensor loss = loss_of(net, comm.rank(), t);
    engine.backward(loss);
    engine.step();
    losses.push_back(loss.item<float>());
  }
  const std::vector<float> values = values_of(net);
  losses.insert(losses.end(), values.begin(), values.end());
  return losses;
}

TEST(TorchDevice, EveryOptimizerHasTheBitsOfTheCpu) {
  for (const auto& [world, steps] : {std::pair{1, 20}, {2, 50}, {4, 12}})
    for (const Case& which : cases())
      run(world, [&, steps = steps](comm::Communicator& comm) {
        const auto want = train(comm, which, at::kCPU, steps);
        EXPECT_EQ(train(comm, which, device_of(comm.rank()), steps), want)
            << which.name << " on " << comm.size() << " ranks";
      });
}

TEST(TorchDevice, ItsHostWaitsOncePerWindowAndCopiesAreAsynchronous) {
  for (const Case& which : cases()) {
    if (which.config.precision.dtype == DType::kFloat16) continue;
    run(1, [&](comm::Communicator& comm) {
      Net net;
      net.to(device_of());
      Engine engine(net, comm, which.config);
      std::int64_t before[::fence::kCounts] = {};
      std::int64_t bytes = 0;
      const int each = static_cast<int>(
          which.config.gradient_accumulation_steps.value_or(1));
      std::vector<at::Tensor> inputs;
      for (int t = 0; t < 6 * each; ++t)
        inputs.push_back(input(device_of(), 0, t).to(net.last->weight));
      for (int window = 0; window < 6; ++window) {
        if (window == 2) {
          ::fence::Guard().synchronizeDevice(0);
          std::copy_n(::fence::counts, ::fence::kCounts, before);
          bytes = ::fence::bytes_in_use;
        }
        for (int micro = 0; micro < each; ++micro) {
          const auto& x =
              inputs[static_cast<std::size_t>(window * each + micro)];
          engine.backward(net.forward(x).to(at::kFloat).square().mean());
          engine.step();
        }
      }
      const bool is_added_on_the_host =
          which.config.precision.dtype != DType::kFloat32 ||
          which.config.zero.stage == 2;
      const std::int64_t waits = is_added_on_the_host ? 4 * each : 4;
      EXPECT_LE(
          ::fence::counts[::fence::kHostWaits] - before[::fence::kHostWaits],
          waits)
          << which.name;
      EXPECT_EQ(::fence::counts[::fence::kUnpinnedAsync],
                before[::fence::kUnpinnedAsync])
          << which.name;
      ::fence::Guard().synchronizeDevice(0);
      EXPECT_EQ(::fence::bytes_in_use, bytes) << which.name;
    });
  }
}

}  // namespace
}  // namespace thinwire::torch::device_test
