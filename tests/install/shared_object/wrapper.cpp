// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <vector>

#include "thinwire/comm/run.h"
#include "thinwire/optim/onebit_adam.h"

// What it exports; all of Thinwire stays inside.
extern "C" [[gnu::visibility("default")]] int wrapper_train(
    std::size_t elements) {
  return thinwire::comm::run([&](thinwire::comm::Communicator& comm) {
    const auto layout =
        thinwire::ParameterLayout::of({{.name = "a", .shape = {elements}}});
    thinwire::optim::OnebitAdam optimizer(comm, layout, {.learning_rate = 0.1});
    std::vector<float> params(layout.size());
    std::vector<float> grads(layout.size(), 1.0f);
    (void)optimizer.step(params, grads);
  });
}
