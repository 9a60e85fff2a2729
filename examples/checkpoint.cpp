// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "thinwire/checkpoint/checkpoint.h"
#include "thinwire/comm/run.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/onebit_adam.h"

namespace checkpoint = thinwire::checkpoint;
namespace comm = thinwire::comm;
namespace optim = thinwire::optim;

constexpr std::size_t kInputs = 400;
constexpr int kSteps = 300;

// Learns the sum of 20 inputs. Adds the gradient of half the squared difference
// for one sample, and returns that loss.
float add_gradient(const std::vector<float>& weights, std::mt19937& random,
                   std::vector<float>& grads) {
  std::vector<std::size_t> ones(20);
  for (std::size_t& i : ones) i = random() % kInputs;
  float difference = -20;
  for (const std::size_t i : ones) difference += weights[i];
  for (const std::size_t i : ones) grads[i] += difference / 8;
  return difference * difference / 2;
}

void train(comm::Communicator& comm, const std::string& folder) {
  const auto layout =
      thinwire::ParameterLayout::of({{.name = "weights", .shape = {kInputs}}});
  std::vector<float> weights(layout.size());
  std::vector<float> grads(layout.size());
  optim::OnebitAdam optimizer(comm, layout,
                              {.learning_rate = 0.03, .freeze = {.step = 60}});

  checkpoint::Training training{.comm = comm,
                                .layout = layout,
                                .params = weights,
                                .optimizer = optimizer};
  if (const auto loaded = checkpoint::resume(training, folder)) {
    training.step = loaded->step;
    if (comm.rank() == 0) std::cout << "resumes from " << loaded->path << '\n';
  }
  for (std::int64_t step = training.step + 1; step <= kSteps; ++step) {
    // Data that depend only on step and rank are the same after a restart.
    std::mt19937 random(static_cast<unsigned>(step * 64 + comm.rank()));
    std::ranges::fill(grads, 0.0f);
    float loss = 0;
    for (int i = 0; i < 8; ++i)
      loss += add_gradient(weights, random, grads) / 8;
    optimizer.step(weights, grads);
    training.step = step;
    if (step % 100 == 0) {
      const auto saved = checkpoint::save(training, folder);
      if (comm.rank() == 0)
        std::cout << "step " << step << ": loss " << loss << ", saved as "
                  << saved.path << '\n';
    }
  }
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "out/checkpoint_example";
  return comm::run([&](comm::Communicator& comm) { train(comm, folder); });
}
