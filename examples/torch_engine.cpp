// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <iostream>

#include "thinwire/comm/run.h"
#include "thinwire/torch/engine.h"

void show(int step, const torch::Tensor& loss,
          const thinwire::engine::EngineReport& report) {
  std::cout << "step " << step << ": " << to_string(report.phase) << ", loss "
            << loss.item<double>() << ", " << report.bytes_sent
            << " bytes sent\n";
}

// Trains a small LibTorch module data-parallel; start it alone or under mpirun.
void train(thinwire::comm::Communicator& comm) {
  torch::nn::Linear model(64, 64);
  const thinwire::config::Config config{
      .optimizer =
          thinwire::optim::OnebitAdamOptions{.freeze = {.total_steps = 400}}};
  thinwire::torch::Engine engine(*model, comm, config);
  torch::manual_seed(comm.rank());  // Every rank has data of its own.
  for (int step = 1; step <= 400; ++step) {
    const auto inputs = torch::rand({32, 64});
    const auto loss = torch::mse_loss(model->forward(inputs), inputs.sin());
    engine.backward(loss);
    const auto report = engine.step();
    if (comm.rank() == 0 && step % 50 == 0) show(step, loss, report);
  }
}

int main() { return thinwire::comm::run(train); }
