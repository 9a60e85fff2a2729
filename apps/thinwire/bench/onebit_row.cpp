// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <memory>

#include "apps/thinwire/bench/echo_transport.h"
#include "apps/thinwire/bench/rows.h"
#include "thinwire/comm/communicator.h"
#include "thinwire/core/buffer.h"
#include "thinwire/optim/onebit_adam.h"

namespace thinwire::apps::bench {

namespace {

constexpr int kWorld = 4;

// optim::OnebitAdam as users call it, its three other ranks played by an echo:
// all that a step does on one rank but the travelling.
struct OnebitAdamWork {
  OnebitAdamWork(std::size_t elements, int threads)
      : comm(std::make_unique<EchoTransport>(kWorld)),
        optimizer(comm, ParameterLayout::of({{"all", {elements}}}),
                  {.learning_rate = 1e-5,
                   .weight_decay = 0.01,
                   .freeze_step = 1,
                   .exchange = {.num_threads = threads}}),
        params(random_values(elements, 1)),
        grads(random_values(elements, 2)) {
    run();  // the exact one; it leaves sums behind
    grads = random_values(elements, 2);
    run();  // the first compressed one, whose momentum is still in floats
  }

  void run() { optimizer.step(params.view(), grads.view()); }

  comm::Communicator comm;
  optim::OnebitAdam optimizer;
  Buffer params;
  Buffer grads;
};

}  // namespace

std::function<void()> prepare_onebit_adam(std::size_t elements,
                                          ThreadPool& pool) {
  auto work = std::make_shared<OnebitAdamWork>(elements, pool.num_threads());
  return [work] { work->run(); };
}

}  // namespace thinwire::apps::bench
