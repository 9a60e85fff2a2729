// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "thinwire/comm/run.h"
#include "thinwire/engine/checkpointer.h"
#include "thinwire/engine/engine.h"

namespace checkpoint = thinwire::checkpoint;
namespace comm = thinwire::comm;
namespace engine = thinwire::engine;

constexpr std::int64_t kSteps = 400;

// Pulls towards the centre of points, of which this rank draws one per step.
void add_gradient(const std::vector<float>& params, std::mt19937& random,
                  std::vector<float>& grads) {
  std::normal_distribution<float> noise;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const float centre = i % 2 == 0 ? 1.0f : -1.0f;
    grads[i] += params[i] - centre + noise(random);
  }
}

// An engine that saves itself every 100 steps. SIGUSR1 saves and ends it.
// Started again, alone or under mpirun, it resumes.
void train(comm::Communicator& comm, const std::string& folder) {
  const auto layout =
      thinwire::ParameterLayout::of({{.name = "centre", .shape = {300, 100}}});
  const thinwire::config::Config config{
      .optimizer = thinwire::optim::OnebitAdamOptions{.learning_rate = 0.02,
                                                      .freeze = {.step = 100}}};
  std::vector<float> params(layout.size()), grads(layout.size());
  engine::Engine model(comm, layout, config, params, grads);

  std::int64_t step = 0;
  if (const auto loaded = model.resume(folder)) {
    step = loaded->extra.common.integer("step");
    if (comm.rank() == 0) std::cout << "resumes from " << loaded->path << '\n';
  }
  const auto position = [&] {
    checkpoint::Extra extra;
    extra.common.put_integer("step", step);
    return extra;
  };
  engine::Checkpointer checkpointer(model, {.root = folder,
                                            .every_steps = 100,
                                            .keep_last = 3,
                                            .signals = {SIGUSR1}});
  while (step < kSteps && !checkpointer.stop_requested()) {
    ++step;
    // Data that depend only on step and rank are the same after a restart.
    std::mt19937 random(static_cast<unsigned>(step * 64 + comm.rank()));
    model.begin_backward();
    add_gradient(params, random, grads);
    model.end_backward();
    const auto report = model.step();
    if (comm.rank() == 0 && step % 50 == 0)
      std::cout << "step " << step << ": first number " << params[0] << '\n';
    const std::string failure = checkpointer.after_step(report, position);
    if (comm.rank() == 0 && !failure.empty())
      std::cerr << "not saved: " << failure << '\n';
  }
  checkpointer.finish(position);
  const std::string& newest = checkpointer.totals().newest;
  if (comm.rank() == 0 && !newest.empty())
    std::cout << "step " << step << ", saved as " << newest << '\n';
}

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "out/checkpointer_example";
  return comm::run([&](comm::Communicator& comm) { train(comm, folder); });
}
