// SPDX-License-Identifier: Apache-2.0
// Each wait, event and record_stream() of the front end of LibTorch is needed:
// without it the test device gives other values or names the race.
// device_mutants.py takes them out, one by one.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/group.h"
#include "device_mutants.h"
#include "thinwire/torch/host_engine.h"
#include "torch/device.h"
#include "torch/net.h"

namespace thinwire::torch::device_mutants_test {
namespace {

using Values = std::vector<float>;

template <class Engine>
void train(comm::Communicator& comm, const at::Device& device,
           const config::Config& config, std::vector<at::Tensor>& losses) {
  Net net;
  net.to(device);
  Engine engine(net, comm, config);
  const auto micro = config.gradient_accumulation_steps.value_or(1);
  for (int t = 0; t < 12; ++t) {
    for (int k = 0; k < micro; ++k) {
      net.uses_side = (t + k) % 2 == 0;
      if (t == 5 && k == 0) {
        // Its gradients are of parameters that the next backward does not use.
        const at::Tensor x = at::ones({4, 3}).to(device).requires_grad_();
        EXPECT_THROW(engine.backward(net.side->forward(Breaks::apply(x)).sum()),
                     std::exception);
      }
      const at::Tensor loss = loss_of(net, 0, 3 * t + k);
      engine.backward(loss);
      losses.push_back(loss.detach());
      // Queued before parameters change.
      losses.push_back(net.first->forward(input(device, 0, t)).sum().detach());
      engine.step();
    }
    if (t % 3 == 1) {
      const std::vector<float> bias(net.side->bias.numel(),
                                    0.01F * static_cast<float>(t));
      engine.core().whole_values().set_parameter("side.bias", bias);
      engine.send_parameters();
      const auto evaluation = engine.evaluation();
      losses.push_back(loss_of(net, 0, 99));
    }
  }
}

template <class Memory>
void train_by_hand(comm::Communicator& comm, const at::Device& device,
                   std::vector<at::Tensor>& losses) {
  Net net;
  net.to(device);
  Memory memory(net);
  optim::OnebitAdam optimizer(
      comm, memory.layout(),
      {.freeze = {.step = 2},
       .compression = {.exchange = {.bucket_elements = 2048}}});
  for (int t = 0; t < 6; ++t) {
    memory.zero_grad();
    losses.push_back(loss_of(net, 0, t));
    losses.back().backward();
    memory.check();
    memory.fetch_gradients();
    optimizer.step({.params = memory.params(),
                    .grads = memory.grads(),
                    .final_range = memory.final_range()});
    memory.send_parameters();
  }
}

// Trains with engines and with a loop by hand, in all the ways that wait.
template <class Engine, class Memory>
Values everything(comm::Communicator& comm, const at::Device& device) {
  std::vector<at::Tensor> losses;
  config::Config zero_one{.optimizer = optim::ZeroOneAdamOptions{
                              .learning_rate = 0.01, .var_freeze_step = 2}};
  config::Config sharded{.optimizer = kAdam};
  sharded.zero.stage = 2;
  config::Config accumulated{.optimizer = kAdam,
                             .gradient_accumulation_steps = 2};
  for (config::Config* const config : {&zero_one, &sharded, &accumulated}) {
    config->comm.bucket_elements = 2048;
    train<Engine>(comm, device, *config, losses);
  }
  train_by_hand<Memory>(comm, device, losses);
  {
    const ::fence::Guard guard;
    std::optional<c10::StreamGuard> side;
    if (!device.is_cpu())
      side.emplace(guard.getStreamFromGlobalPool(device, false));
    train<Engine>(comm, device, sharded, losses);
    if (!device.is_cpu()) guard.synchronizeDevice(0);
  }
  Values values;
  for (const at::Tensor& loss : losses) values.push_back(loss.item<float>());
  return values;
}

// A module that is used twice in a checkpoint has two gradients per backward.
template <class Engine>
std::string refusal_of_two_gradients(comm::Communicator& comm) {
  nn::Linear layer(4, 4);
  layer->to(device_of());
  Engine engine(*layer, comm, config_of());
  const at::Tensor x = at::ones({2, 4}).to(device_of()).requires_grad_();
  const Recomputed::Forward body = [&](const at::Tensor& in) {
    return layer->forward(in).tanh();
  };
  try {
    engine.backward(
        Recomputed::apply(Recomputed::apply(x, &body), &body).sum());
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

// Losses of each rank of two hosts, with one leader each.
template <class HostEngine>
std::vector<Values> led() {
  constexpr int kPerHost = 2;
  std::vector<Values> of_ranks(4);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto seconds = std::chrono::seconds(5);
  const auto train = [&](comm::Communicator& comm, DType dtype) {
    const at::Device device = device_of(comm.rank());
    const c10::StreamGuard side(
        ::fence::Guard().getStreamFromGlobalPool(device, false));
    Net net(comm.rank());
    net.to(device);
    config::Config config = config_of(dtype, 2);
    config.comm.ranks_per_host = kPerHost;
    const std::string name = "of host " +
                             std::to_string(comm.rank() / kPerHost) + " " +
                             std::string(to_string(dtype));
    HostEngine engine(net, comm,
                      c10::make_intrusive<::fence::Ccl>(
                          c10::make_intrusive<c10d::PrefixStore>(name, store),
                          comm.rank() % kPerHost, kPerHost, seconds),
                      config, {.bucket_bytes = 2048});
    for (int t = 0; t < 8; ++t) {
      net.uses_side = t % 4 != 3;
      const at::Tensor loss = loss_of(net, comm.rank(), t);
      engine.backward(loss);
      engine.step();
      of_ranks[static_cast<std::size_t>(comm.rank())].push_back(
          loss.item<float>());
    }
  };
  comm::run_local_ranks(4,
                        [&](comm::Communicator& comm) {
                          at::set_num_threads(1);
                          train(comm, DType::kFloat32);
                          train(comm, DType::kBFloat16);
                        },
                        {.timeout = seconds});
  return of_ranks;
}

// Engines with leaders, without them, or both.
enum class Part { led, alone, all };

// Returns what shows that something is missing; empty if nothing does.
template <class Engine, class Memory, class HostEngine, Part part>
std::string found() {
  std::string what;
  try {
    if (part != Part::alone && led<HostEngine>() != led<torch::HostEngine>())
      return "other values with leaders";
    if (part == Part::led) return "";
    run(1, [&](comm::Communicator& comm) {
      const Values want = everything<Engine, Memory>(comm, at::kCPU);
      const Values have = everything<Engine, Memory>(comm, device_of());
      if (have != want) what = "other values";
      ::fence::Guard().synchronizeDevice(0);
      const std::string refusal = refusal_of_two_gradients<Engine>(comm);
      if (refusal.find("there were two in one backward") == std::string::npos)
        what = "not refused: " + refusal;
    });
  } catch (const std::exception& error) {
    return error.what();
  }
  return what;
}

// In a process of its own, because a race stays in the device's state. If that
// ends without an answer, something was missing.
std::string in_a_process(std::string (*test)()) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    const std::string text = "=" + test();
    static_cast<void>(!write(ends[1], text.data(), text.size()));
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char part[4096];
  for (ssize_t n; (n = read(ends[0], part, sizeof part)) > 0;)
    text.append(part, static_cast<std::size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (text.empty()) return "it ended with status " + std::to_string(status);
  return text.substr(1);
}

struct Mutant {
  const char* name;
  std::string (*test)();
};

TEST(TorchDeviceMutants, EveryWaitIsNeeded) {
#define THINWIRE_MUTANT(space, name, part) \
  Mutant{name,                             \
         &found<space::Engine, space::ModuleMemory, space::HostEngine, part>},
  const std::vector<Mutant> mutants{THINWIRE_MUTANTS(THINWIRE_MUTANT)};
#undef THINWIRE_MUTANT
  ASSERT_GT(mutants.size(), 10U);
  for (const Mutant& mutant : mutants) {
    const std::string what = in_a_process(mutant.test);
    if (&mutant == &mutants.front())
      EXPECT_EQ(what, "") << mutant.name;
    else
      EXPECT_NE(what, "") << mutant.name;
  }
}

}  // namespace
}  // namespace thinwire::torch::device_mutants_test
