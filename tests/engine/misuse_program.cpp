// SPDX-License-Identifier: Apache-2.0
// One rank of an MPI job in which rank 1 does by mistake what the command line
// names. Ranks print the errors they get. Started by misuse_test.cmake.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "thinwire/comm/registry.h"
#include "thinwire/engine/engine.h"

namespace {

using namespace thinwire;

// Buckets that MPI does not buffer.
constexpr std::size_t kSize = 300'000;

void train(comm::Communicator& comm, const std::string& mistake) {
  const auto layout = ParameterLayout::of({{"a", {kSize}}, {"b", {kSize}}});
  config::Config config{.optimizer = optim::AdamOptions{}};
  config.comm.bucket_elements = kSize;
  std::vector<float> params(layout.size()), grads(layout.size());
  engine::Engine engine(comm, layout, config, params, grads);
  const bool errs = comm.rank() == 1;
  const bool ends = mistake == "ends" || mistake == "goes_on";
  const int steps = errs && ends ? 3 : 6;
  for (int step = 1; step <= steps; ++step) {
    const bool now = errs && step == 4;
    engine.begin_backward();
    std::fill(grads.begin(), grads.end(), 0.5f);
    engine.gradient_ready(1);
    if (now && mistake == "throws") engine.cancel_backward("my own cause");
    engine.gradient_ready(0);
    engine.end_backward();
    if (now && mistake == "clips")
      std::for_each(grads.begin(), grads.end(), [](float& g) { g *= 0.5f; });
    engine.step();
  }
  if (mistake == "ends" && errs) return;
  std::printf("mean %g\n", engine.mean(1));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  // mpirun ends the job with the first rank that fails, so the one that errs
  // leaves another the time to speak, however busy the machine is.
  std::chrono::milliseconds wait{1500};
  try {
    const auto comm = comm::from_environment();
    if (comm->rank() == 1) wait = std::chrono::seconds(30);
    try {
      train(*comm, argv[1]);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "error on rank %d: %s\n", comm->rank(),
                   error.what());
      throw;
    }
  } catch (const std::exception&) {
    std::this_thread::sleep_for(wait);
    return 1;
  }
}
