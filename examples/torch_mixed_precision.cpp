// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <iostream>
#include <string>

#include "thinwire/comm/run.h"
#include "thinwire/torch/engine.h"
#include "thinwire/torch/random_state.h"

namespace {

// Parameters are fp16; the loss is computed in fp32.
torch::Tensor loss_of(torch::nn::Sequential& model,
                      const torch::Tensor& inputs) {
  const auto wanted = inputs.sum(1, /*keepdim=*/true).sin();
  const auto outputs = model->forward(inputs.to(torch::kHalf));
  return torch::mse_loss(outputs.to(torch::kFloat), wanted);
}

}  // namespace

// Trains a LibTorch module in fp16, four backwards per step, and evaluates it.
// Start it alone or under mpirun. Given a directory, it saves itself there at
// its end. Started again, it resumes with 400 more steps.
void train(thinwire::comm::Communicator& comm, const std::string& folder) {
  torch::nn::Sequential model(torch::nn::Linear(8, 64), torch::nn::Tanh(),
                              torch::nn::Linear(64, 1));
  const thinwire::config::Config config{
      .optimizer = thinwire::optim::OnebitAdamOptions{.learning_rate = 0.01,
                                                      .freeze = {.step = 100}},
      .precision = {.dtype = thinwire::DType::kFloat16},
      .gradient_clipping = 1,
      .gradient_accumulation_steps = 4};
  thinwire::torch::Engine engine(*model, comm, config);

  torch::manual_seed(comm.rank());  // Every rank has different data.
  if (!folder.empty()) {
    if (const auto loaded = engine.resume(folder)) {
      const thinwire::StateDict& own = loaded->extra.own;
      if (own.has_array("random"))  // Ranks that are new have none.
        thinwire::torch::set_random_state(own.array("random"));
    }
  }
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
  if (!folder.empty()) {
    thinwire::checkpoint::Extra extra;
    extra.own.put("random", thinwire::torch::random_state());
    const auto saved = engine.save(folder, extra);
    if (comm.rank() == 0) std::cout << "saved as " << saved.path << '\n';
  }
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "";
  return thinwire::comm::run(
      [&](thinwire::comm::Communicator& comm) { train(comm, folder); });
}
