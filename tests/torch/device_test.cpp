// SPDX-License-Identifier: Apache-2.0
// A module on the test device, whose memory the host cannot read, has the bits
// of the CPU. This is a program of its own, because the device's operators are
// global.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/operators.h"
#include "support/errors.h"
#include "torch/net.h"

namespace thinwire::torch::device_test {
namespace {

using test::expect_error;

// Ranks share the device's streams, so each has a device of its own.
at::Device device_of(int rank = 0) {
  static const bool is_named = [] {
    c10::register_privateuse1_backend("fence");
    return true;
  }();
  static_cast<void>(is_named);
  return at::Device(at::kPrivateUse1, static_cast<at::DeviceIndex>(rank));
}

at::Tensor input(const at::Device& device, int rank, int batch) {
  return at::sin(at::arange(80, at::kFloat) * (0.3 + batch + 0.17 * rank))
      .view({4, 20})
      .to(device);
}

at::Tensor loss_of(Net& net, int rank, int batch) {
  const at::Tensor& weight = net.last->weight;
  const at::Tensor x = input(weight.device(), rank, batch);
  return net.forward(x.to(weight.scalar_type())).to(at::kFloat).square().mean();
}

std::vector<float> values_of(const nn::Module& module) {
  std::vector<float> all;
  for (const at::Tensor& p : module.parameters()) {
    const at::Tensor on_host = p.detach().to(at::kCPU, at::kFloat).contiguous();
    const float* from = on_host.const_data_ptr<float>();
    all.insert(all.end(), from, from + on_host.numel());
  }
  return all;
}

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
                           .learning_rate = 0.01, .freeze = {.step = 3}}});
    add("0/1 Adam", {.optimizer = optim::ZeroOneAdamOptions{
                         .learning_rate = 0.01, .var_freeze_step = 3}});
    for (const int stage : {1, 2}) {
      config::Config config{.optimizer = kAdam};
      config.zero.stage = stage;
      add("ZeRO-" + std::to_string(stage), config);
    }
    config::Config accumulated{.optimizer = kAdam,
                               .gradient_accumulation_steps = 2};
    accumulated.zero.stage = 2;
    add("ZeRO-2, accumulation", accumulated);
  }
  return all;
}

std::vector<float> train(comm::Communicator& comm, const Case& which,
                         const at::Device& device, int steps = 12) {
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
  for (const int world : {1, 2})
    for (const Case& which : cases())
      run(world, [&](comm::Communicator& comm) {
        const auto want = train(comm, which, at::kCPU);
        EXPECT_EQ(train(comm, which, device_of(comm.rank())), want)
            << which.name << " on " << world << " ranks";
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

// ---- programs use modules in many ways

using Values = std::vector<float>;

Values losses_and(const Values& losses, const nn::Module& module) {
  Values all = losses;
  const Values values = values_of(module);
  all.insert(all.end(), values.begin(), values.end());
  return all;
}

Values channels_last(comm::Communicator& comm, const at::Device& device) {
  nn::Sequential net(nn::Conv2d(3, 8, 3), nn::BatchNorm2d(8),
                     nn::Conv2d(8, 4, 3));
  {
    const ::torch::NoGradGuard no_grad;
    for (at::Tensor& p : net->parameters())
      p.copy_(at::sin(at::arange(p.numel(), at::kFloat)).view_as(p));
    for (at::Tensor& p : net->parameters())
      if (p.dim() == 4)
        p.set_data(p.contiguous(at::MemoryFormat::ChannelsLast));
  }
  net->to(device);
  Engine engine(*net, comm, config_of());
  Values losses;
  for (int t = 0; t < 4; ++t) {
    const at::Tensor x = at::cos(at::arange(2 * 3 * 64, at::kFloat) * (t + 0.5))
                             .view({2, 3, 8, 8})
                             .to(device)
                             .contiguous(at::MemoryFormat::ChannelsLast);
    const at::Tensor loss = net->forward(x).square().mean();
    engine.backward(loss);
    engine.step();
    losses.push_back(loss.item<float>());
  }
  if (!device.is_cpu()) {
    EXPECT_TRUE(
        net->parameters()[0].is_contiguous(at::MemoryFormat::ChannelsLast));
  }
  return losses_and(losses, *net);
}

Values infinite_gradient(comm::Communicator& comm, const at::Device& device) {
  Net net;
  net.to(device);
  Engine engine(net, comm, config_of(DType::kFloat16));
  Values losses;
  for (int t = 0; t < 5; ++t) {
    at::Tensor loss = loss_of(net, 0, t);
    if (t == 2) loss = loss * std::numeric_limits<float>::infinity();
    engine.backward(loss);
    EXPECT_EQ(engine.step().applied, t != 2);
    losses.push_back(static_cast<float>(engine.core().loss_scale()));
  }
  return losses_and(losses, net);
}

Values written_parameters(comm::Communicator& comm, const at::Device& device) {
  Net net;
  net.to(device);
  Engine engine(net, comm, config_of());
  Values losses;
  for (int t = 0; t < 6; ++t) {
    const at::Tensor loss = loss_of(net, 0, t);
    engine.backward(loss);
    engine.step();
    losses.push_back(loss.item<float>());
    const ::torch::NoGradGuard no_grad;
    if (t % 2 == 1) net.first->weight.clamp_(-0.05, 0.05);
    if (t == 3) {
      engine.set_learning_rate(0.02);
      const std::vector<float> bias(net.side->bias.numel(), 0.5F);
      engine.core().whole_values().set_parameter("side.bias", bias);
      engine.send_parameters();
    }
  }
  return losses_and(losses, net);
}

Values evaluations(comm::Communicator& comm, const at::Device& device) {
  Net net;
  net.to(device);
  config::Config config{.optimizer = optim::ZeroOneAdamOptions{
                            .learning_rate = 0.01, .var_freeze_step = 2}};
  Engine engine(net, comm, config);
  Values losses;
  for (int t = 0; t < 8; ++t) {
    engine.backward(loss_of(net, 0, t));
    engine.step();
    if (t % 3 == 2) {
      const auto evaluation = engine.evaluation();
      losses.push_back(loss_of(net, 0, 99).item<float>());
    }
  }
  return losses_and(losses, net);
}

Values windows_by_hand(comm::Communicator& comm, const at::Device& device) {
  Values all;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Net net;
    net.to(device);
    config::Config config = config_of(dtype);
    config.managed_gradient_accumulation = false;
    Engine engine(net, comm, config);
    for (int t = 0; t < 8; ++t) {
      engine.backward(loss_of(net, 0, t));
      if (t % 3 != 1) engine.step();
    }
    all = losses_and(all, net);
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

Values broken_backward(comm::Communicator& comm, const at::Device& device) {
  Net net;
  net.to(device);
  Engine engine(net, comm, config_of(DType::kFloat32, 2));
  engine.backward(loss_of(net, 0, 1));
  engine.step();
  const at::Tensor y = net.first->forward(input(device, 0, 2));
  EXPECT_THROW(engine.backward(net.second->forward(Breaks::apply(y)).sum()),
               std::exception);
  for (int t = 3; t < 7; ++t) {
    engine.backward(loss_of(net, 0, t));
    engine.step();
  }
  return values_of(net);
}

Values by_hand(comm::Communicator& comm, const at::Device& device) {
  Net net;
  net.to(device);
  ModuleMemory memory(net);
  optim::OnebitAdam optimizer(comm, memory.layout(), {.freeze = {.step = 2}});
  Values losses;
  for (int t = 0; t < 5; ++t) {
    net.uses_side = t % 2 == 0;
    memory.zero_grad();
    const at::Tensor loss = loss_of(net, 0, t);
    loss.backward();
    memory.check();
    memory.fetch_gradients();
    optimizer.step(memory.params(), memory.grads());
    memory.send_parameters();
    losses.push_back(loss.item<float>());
  }
  return losses_and(losses, net);
}

Values checkpoints(comm::Communicator& comm, const at::Device& device) {
  const std::filesystem::path root =
      std::filesystem::temp_directory_path() /
      ("thinwire_device_test_" + std::to_string(getpid()) + device.str());
  const config::Config config = config_of(DType::kBFloat16);
  {
    Net net;
    net.to(device);
    Engine engine(net, comm, config);
    for (int t = 0; t < 3; ++t) {
      engine.backward(loss_of(net, 0, t));
      engine.step();
    }
    static_cast<void>(engine.save(root.string(), {}, {.durable = false}));
  }
  Net net(7);
  // What was saved on a device goes on on the CPU, and back.
  const at::Device other = device.is_cpu() ? device_of() : at::kCPU;
  net.to(other);
  Engine engine(net, comm, config);
  static_cast<void>(engine.load(root.string()));
  std::filesystem::remove_all(root);
  for (int t = 3; t < 6; ++t) {
    engine.backward(loss_of(net, 0, t));
    engine.step();
  }
  return values_of(net);
}

TEST(TorchDevice, ProgramsGetTheValuesOfTheCpu) {
  const std::vector<std::pair<const char*, Values (*)(comm::Communicator&,
                                                      const at::Device&)>>
      all{{"channels_last", channels_last},
          {"infinite_gradient", infinite_gradient},
          {"written_parameters", written_parameters},
          {"evaluations", evaluations},
          {"broken_backward", broken_backward},
          {"windows_by_hand", windows_by_hand},
          {"by_hand", by_hand},
          {"checkpoints", checkpoints}};
  for (const auto& [name, program] : all)
    run(1, [&, body = program](comm::Communicator& comm) {
      const Values want = body(comm, at::kCPU);
      EXPECT_EQ(body(comm, device_of()), want) << name;
    });
}

TEST(TorchDevice, RefusesWhatItCannotFollow) {
  run(1, [](comm::Communicator& comm) {
    Net net;
    net.last->to(device_of());
    expect_error(ErrorCode::kInvalidArgument,
                 {"'last.weight': must be on one device with all others, cpu"},
                 [&] { Engine(net, comm, config_of()); });
    net.to(device_of());
    Engine engine(net, comm, config_of(DType::kFloat32, 2));
    engine.backward(loss_of(net, 0, 1));
    engine.step();
    net.zero_grad();
    expect_error(ErrorCode::kFailedPrecondition, {"is gone or was replaced"},
                 [&] { engine.backward(loss_of(net, 0, 1)); });
    Net moved;
    moved.to(device_of());
    Engine of_moved(moved, comm, config_of());
    moved.to(at::kCPU);
    expect_error(ErrorCode::kFailedPrecondition, {"was replaced after"},
                 [&] { of_moved.backward(loss_of(moved, 0, 1)); });
  });
}

}  // namespace
}  // namespace thinwire::torch::device_test
