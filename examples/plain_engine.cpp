// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <iostream>
#include <random>
#include <vector>

#include "thinwire/comm/run.h"
#include "thinwire/engine/engine.h"

// Uses fp16 and two backwards per step, without a framework. Finds the centre
// of points that every rank draws itself. Start it alone or under mpirun.
void find_centre(thinwire::comm::Communicator& comm) {
  const auto layout = thinwire::ParameterLayout::of(
      {{.name = "centre", .shape = {300, 100}}, {.name = "bias", .shape = {}}});
  const thinwire::config::Config config{
      .optimizer = thinwire::optim::OnebitAdamOptions{.learning_rate = 0.02,
                                                      .freeze = {.step = 100}},
      .precision = {.dtype = thinwire::DType::kFloat16},
      .gradient_accumulation_steps = 2};
  std::vector<thinwire::Half> params(layout.size()), grads(layout.size());
  thinwire::engine::Engine engine(comm, layout, config, params, grads);

  std::mt19937 random(static_cast<unsigned>(comm.rank()));
  std::normal_distribution<float> noise;
  const auto add_gradient = [&](const thinwire::Parameter& parameter) {
    const auto factor = static_cast<float>(engine.loss_factor());
    for (std::size_t i = parameter.offset;
         i < parameter.offset + parameter.size; ++i) {
      const float centre = i % 2 == 0 ? 1.0f : -1.0f;
      const float gradient = to_float(params[i]) - centre + noise(random);
      grads[i] = thinwire::to_half(to_float(grads[i]) + factor * gradient);
    }
  };
  for (int step = 1; step <= 400; ++step) {
    thinwire::engine::EngineReport report;
    for (int backward = 1; backward <= 2; ++backward) {
      engine.begin_backward();
      for (std::size_t k = layout.parameters().size(); k-- > 0;) {
        add_gradient(layout.parameters()[k]);
        engine.gradient_ready(k);  // May be sent while others are computed.
      }
      engine.end_backward();
      report = engine.step();  // Takes effect after the second backward.
    }
    if (comm.rank() == 0 && step % 50 == 0) {
      std::cout << "step " << step << ": " << to_string(report.phase)
                << ", first number " << to_float(params[0]) << ", loss scale "
                << report.loss_scale << ", " << report.bytes_sent
                << " bytes sent\n";
    }
  }
}

int main() { return thinwire::comm::run(find_centre); }
