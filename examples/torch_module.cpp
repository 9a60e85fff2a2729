// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <iostream>

#include "thinwire/comm/run.h"
#include "thinwire/optim/onebit_adam.h"
#include "thinwire/torch/module_memory.h"

// Trains a small LibTorch module data-parallel; start it alone or under mpirun.
void train(thinwire::comm::Communicator& comm) {
  torch::nn::Sequential model(torch::nn::Linear(8, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 1));
  thinwire::torch::ModuleMemory memory(*model);
  comm.broadcast(memory.params(), 0);  // All ranks start with the same model.
  thinwire::optim::OnebitAdam optimizer(
      comm, memory.layout(), {.learning_rate = 0.01, .freeze = {.step = 100}});

  torch::manual_seed(comm.rank());  // Every rank has different data.
  for (int step = 1; step <= 400; ++step) {
    const auto inputs = torch::rand({32, 8});
    const auto wanted = inputs.sum(1, /*keepdim=*/true).sin();
    memory.zero_grad();
    auto loss = torch::mse_loss(model->forward(inputs), wanted);
    loss.backward();
    const auto report = optimizer.step(memory.params(), memory.grads());
    if (comm.rank() == 0 && step % 50 == 0) {
      std::cout << "step " << step << ": " << to_string(report.phase)
                << ", loss " << loss.item<double>() << ", " << report.bytes_sent
                << " bytes sent\n";
    }
  }
}

int main() { return thinwire::comm::run(train); }
