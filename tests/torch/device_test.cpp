// SPDX-License-Identifier: Apache-2.0
// A module on the test device, whose memory the host cannot read, has the bits
// of the CPU, or an error names what is wrong. This is a program of its own,
// because the device's operators are global.
#include <ATen/autocast_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/errors.h"
#include "support/folder.h"
#include "torch/device.h"
#include "torch/net.h"

namespace thinwire::torch::device_test {
namespace {

using test::expect_error;
using test::expect_invalid;
using Values = std::vector<float>;

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const DType dtype :
       {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const Case& common : common_cases(dtype)) all.push_back(common);
    all.push_back(case_of(
        "1-bit Adam, warm-up in 8 bits", dtype,
        optim::OnebitAdamOptions{.learning_rate = 0.01,
                                 .freeze = {.step = 6, .warmup_bits = 8}}));
    all.push_back(case_of("1-bit LAMB", dtype,
                          optim::OnebitLambOptions{.learning_rate = 0.01,
                                                   .freeze = {.step = 6}}));
    for (const int stage : {1, 2}) {
      all.push_back(case_of("ZeRO-" + std::to_string(stage) + ", 4 bits", dtype,
                            kAdam, stage));
      all.back().config.zero.wire = {.bits_up = 4, .bits_down = 4};
    }
    all.push_back(case_of("outer loop", dtype, kAdam));
    all.back().config.outer = {.sync_every = 3, .warmup_steps = 2};
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
  return losses_and(losses, net);
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

// ---- programs that use a module on the test device in many ways

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

Values checkpointing(comm::Communicator& comm, const at::Device& device) {
  Net net;
  net.to(device);
  Engine engine(net, comm, config_of());
  const Recomputed::Forward body = [&](const at::Tensor& x) {
    return at::tanh(net.second->forward(at::tanh(net.first->forward(x))));
  };
  Values losses;
  for (int t = 0; t < 4; ++t) {
    // Without a gradient of its input it would have no backward.
    const at::Tensor x = input(device, 0, t).requires_grad_();
    const at::Tensor y = Recomputed::apply(x, &body);
    const at::Tensor loss = net.last->forward(y).square().mean();
    engine.backward(loss);
    engine.step();
    losses.push_back(loss.item<float>());
    losses.push_back(x.grad().sum().item<float>());
  }
  return losses_and(losses, net);
}

// A layer that is used twice, one that is used in no step, and one that is
// used in some.
Values shared_and_unused(comm::Communicator& comm, const at::Device& device) {
  struct Odd : Net {
    Odd() { register_module("unused", unused); }
    nn::Linear unused{3, 2};
  };
  Values all;
  for (const int stage : {0, 2}) {
    Odd net;
    {
      const ::torch::NoGradGuard no_grad;
      net.unused->weight.fill_(0.5);
      net.unused->bias.fill_(0.25);
    }
    net.to(device);
    config::Config config = config_of();
    config.zero.stage = stage;
    Engine engine(net, comm, config);
    for (int t = 0; t < 5; ++t) {
      net.uses_side = t % 2 == 0;
      step(engine, net, 0, t);
    }
    all = losses_and(all, net);
  }
  return all;
}

Values autocast(comm::Communicator& comm, const at::Device& device) {
  Net net;
  net.to(device);
  Engine engine(net, comm, config_of());
  Values losses;
  at::autocast::set_autocast_dtype(device.type(), at::kBFloat16);
  for (int t = 0; t < 5; ++t) {
    at::autocast::set_autocast_enabled(device.type(), true);
    const at::Tensor output = net.forward(input(device, 0, t));
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device.type(), false);
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    const at::Tensor loss = output.to(at::kFloat).square().mean();
    engine.backward(loss);
    engine.step();
    losses.push_back(loss.item<float>());
  }
  return losses_and(losses, net);
}

// The program computes on a stream of its own, another one for each step, and
// its host never waits.
Values streams_of_the_program(comm::Communicator& comm,
                              const at::Device& device) {
  Net net;
  net.to(device);
  Engine engine(net, comm, config_of());
  std::vector<at::Tensor> losses;
  std::optional<c10::Stream> last;
  for (int t = 0; t < 6; ++t) {
    std::optional<c10::StreamGuard> side;
    if (!device.is_cpu()) {
      const c10::impl::VirtualGuardImpl guard(device.type());
      const c10::Stream before = last.value_or(guard.getStream(device));
      last = guard.getStreamFromGlobalPool(device);
      c10::Event ended(device.type());
      ended.record(before);
      ended.block(*last);
      side.emplace(*last);
    }
    losses.push_back(loss_of(net, 0, t));
    engine.backward(losses.back());
    engine.step();
  }
  if (last) c10::impl::VirtualGuardImpl(device.type()).synchronizeStream(*last);
  Values values;
  for (const at::Tensor& loss : losses) values.push_back(loss.item<float>());
  return losses_and(values, net);
}

Values checkpoints(comm::Communicator& comm, const at::Device& device) {
  const test::Folder folder;
  const config::Config config = config_of(DType::kBFloat16);
  {
    Net net;
    net.to(device);
    Engine engine(net, comm, config);
    for (int t = 0; t < 3; ++t) {
      step(engine, net, 0, t);
    }
    engine.save(folder.path(), {}, {.durable = false});
  }
  Net net(7);
  // A run that was saved on a device resumes on the CPU, and the other way
  // round.
  const at::Device other = device.is_cpu() ? device_of() : at::kCPU;
  net.to(other);
  Engine engine(net, comm, config);
  engine.load(folder.path());
  for (int t = 3; t < 6; ++t) {
    step(engine, net, 0, t);
  }
  return values_of(net);
}

TEST(TorchDevice, ProgramsGetTheValuesOfTheCpu) {
  const std::vector<std::pair<const char*, Values (*)(comm::Communicator&,
                                                      const at::Device&)>>
      all{{"channels_last", channels_last},
          {"infinite_gradient", infinite_gradient},
          {"written_parameters", written_parameters},
          {"windows_by_hand", windows_by_hand},
          {"checkpointing", checkpointing},
          {"shared_and_unused", shared_and_unused},
          {"autocast", autocast},
          {"streams_of_the_program", streams_of_the_program},
          {"checkpoints", checkpoints}};
  for (const auto& [name, program] : all)
    run(1, [&, body = program](comm::Communicator& comm) {
      const Values want = body(comm, at::kCPU);
      EXPECT_EQ(body(comm, device_of()), want) << name;
    });
}

// Copies are synchronous from then on.
TEST(TorchDevice, HasTheBitsOfTheCpuIfPinnedMemoryIsRefusedLater) {
  config::Config config = config_of(DType::kBFloat16, 2);
  config.zero.stage = 2;
  const auto values = [&](comm::Communicator& comm, const at::Device& device) {
    Net net;
    net.to(device);
    Engine engine(net, comm, config);
    for (int t = 0; t < 6; ++t) {
      step(engine, net, 0, t);
    }
    return values_of(net);
  };
  run(1, [&](comm::Communicator& comm) {
    const Values want = values(comm, at::kCPU);
    for (int count = 0; count < 24; ++count) {
      ::fence::pinned_left = count;
      EXPECT_EQ(values(comm, device_of()), want) << count;
      EXPECT_EQ(::fence::pinned_left, 0) << count;
    }
    ::fence::pinned_left = -1;
  });
}

TEST(TorchDevice, RefusesWhatItCannotFollow) {
  run(1, [](comm::Communicator& comm) {
    Net net;
    net.last->to(device_of());
    expect_invalid(
        {"'last.weight': must be on one device with all others, cpu"},
        [&] { Engine(net, comm, config_of()); });
    net.to(device_of());
    Engine engine(net, comm, config_of(DType::kFloat32, 2));
    step(engine, net, 0, 1);
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
