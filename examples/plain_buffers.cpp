// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstddef>
#include <iostream>
#include <random>
#include <vector>

#include "thinwire/comm/run.h"
#include "thinwire/core/parameter_layout.h"
#include "thinwire/optim/onebit_adam.h"

// Uses no framework, only memory and gradients of the program. Finds the centre
// of points that every rank draws itself. Start it alone or under mpirun.
void find_centre(thinwire::comm::Communicator& comm) {
  const auto layout = thinwire::ParameterLayout::of(
      {{.name = "centre", .shape = {300, 100}}, {.name = "bias", .shape = {}}});
  thinwire::optim::OnebitAdam optimizer(
      comm, layout, {.learning_rate = 0.02, .freeze = {.step = 100}});

  std::vector<float> params(layout.size()), grads(layout.size());
  std::mt19937 random(static_cast<unsigned>(comm.rank()));
  std::normal_distribution<float> noise;
  for (int step = 1; step <= 400; ++step) {
    double distance = 0;
    for (std::size_t i = 0; i < params.size(); ++i) {
      const float centre = i % 2 == 0 ? 1.0f : -1.0f;
      distance += std::abs(params[i] - centre);
      grads[i] = params[i] - centre + noise(random);
    }
    const auto report = optimizer.step(params, grads);
    if (comm.rank() == 0 && step % 50 == 0) {
      std::cout << "step " << step << ": " << to_string(report.phase)
                << ", distance "
                << distance / static_cast<double>(params.size()) << ", "
                << report.bytes_sent << " bytes sent\n";
    }
  }
}

int main() { return thinwire::comm::run(find_centre); }
