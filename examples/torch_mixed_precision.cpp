// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <iostream>

#include "thinwire/comm/run.h"
#include "thinwire/torch/engine.h"

namespace {

// Parameters are fp16; the loss is computed in fp32.
torch::Tensor loss_of(torch::nn::Sequential& model,
                      const torch::Tensor& inputs) {
  const auto wanted = inputs.sum(1, /*keepdim=*/true).sin();
  const auto outputs = model->forward(inputs.to(torch::kHalf));
  return torch::mse_loss(outputs.to(torch::kFloat), wanted);
}

}  // namespace

// A LibTorch module in fp16, four backwards per step, and an evaluation; start
// it alone or under mpirun.
void train(thinwire::comm::Communicator& comm) {
  torch::nn::Sequential model(torch::nn::Linear(8, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 1));
  const thinwire::config::Config config{
      .optimizer = thinwire::optim::OnebitAdamOptions{.learning_rate = 0.01,
                                                      .freeze_step = 100},
      .precision = {.dtype = thinwire::DType::kFloat16},
      .gradient_clipping = 1,
      .gradient_accumulation_steps = 4};
  thinwire::torch::Engine engine(*model, comm, config);

  torch::manual_seed(comm.rank());  // Every rank has data of its own.
  for (int step = 1; step <= 400; ++step) {
    thinwire::engine::EngineReport report;
    for (int backward = 1; backward <= 4; ++backward) {
      engine.backward(loss_of(model, torch::rand({8, 8})));
      report = engine.step();  // Takes effect after the fourth backward.
    }
    if (step % 50 != 0) continue;
    const auto evaluation = engine.evaluation();  // On all ranks.
    const auto loss = loss_of(model, torch::rand({256, 8}));
    if (comm.rank() == 0) {
      std::cout << "step " << step << ": " << to_string(report.phase)
                << ", loss " << loss.item<double>() << ", loss scale "
                << report.loss_scale << ", " << report.bytes_sent
                << " bytes sent\n";
    }
  }
}

int main() { return thinwire::comm::run(train); }
