// SPDX-License-Identifier: Apache-2.0
// One rank of an MPI job in which rank 1 does by mistake what the command line
// names. Ranks write how it ended for them into a folder. Started by
// misuse_test.py.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "thinwire/comm/registry.h"
#include "thinwire/engine/engine.h"

namespace {

using namespace thinwire;
namespace fs = std::filesystem;

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

fs::path file_of(const fs::path& folder, int rank) {
  return folder / ("said." + std::to_string(rank));
}

// Writes the process and what it said, in one step.
void write(const fs::path& folder, int rank, const std::string& said) {
  const fs::path partial = folder / ("partial." + std::to_string(rank));
  std::ofstream(partial) << getpid() << '\n' << said;
  fs::rename(partial, file_of(folder, rank));
}

bool all_have_spoken(const fs::path& folder) {
  for (int rank = 0; rank < 3; ++rank)
    if (!fs::exists(file_of(folder, rank))) return false;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::string said = "ended";
  int rank = -1;
  try {
    const auto comm = comm::from_environment();
    rank = comm->rank();
    train(*comm, argv[1]);
  } catch (const std::exception& error) {
    said = std::string("error: ") + error.what();
  }
  write(argv[2], rank, said);
  if (said == "ended") return 0;
  // mpiexec ends the job with the first rank that fails, so each leaves the
  // others the time to speak, however busy the machine is.
  for (int i = 0; i < 400 && !all_have_spoken(argv[2]); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  return 1;
}
