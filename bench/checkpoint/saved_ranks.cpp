// SPDX-License-Identifier: Apache-2.0
//   saved_ranks FOLDER ELEMENTS TENSORS RANKS ROUNDS
//
// Saves and loads a model with Adam's moments in fp32; ranks are threads.
// Prints one JSON object: medians of the slowest rank's seconds, bytes of all
// files and of the manifest.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/thinwire/bench/rows.h"
#include "apps/thinwire/bench/saved_training.h"
#include "thinwire/comm/local.h"

namespace {

using thinwire::apps::bench::median;
using thinwire::apps::bench::SavedTraining;
using thinwire::apps::bench::slowest_seconds;
namespace comm = thinwire::comm;

struct Result {
  std::vector<double> save_seconds;
  std::vector<double> load_seconds;
  std::uint64_t bytes = 0;
  std::uint64_t manifest_bytes = 0;
};

void run(comm::Communicator& comm, const SavedTraining::Settings& settings,
         int rounds, Result& result) {
  SavedTraining training(comm, settings);
  for (int round = -1; round < rounds; ++round) {
    std::string path;
    const double saved =
        slowest_seconds(comm, [&] { path = training.save().path; });
    const double loaded = slowest_seconds(comm, [&] { training.load(); });
    if (comm.rank() == 0 && round >= 0) {
      result.save_seconds.push_back(saved);
      result.load_seconds.push_back(loaded);
      result.bytes = 0;
      for (const auto& file : std::filesystem::directory_iterator(path))
        result.bytes += file.file_size();
      result.manifest_bytes =
          std::filesystem::file_size(path + "/manifest.json");
    }
    training.remove();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 5) {
    std::fputs("saved_ranks FOLDER ELEMENTS TENSORS RANKS ROUNDS\n", stderr);
    return 2;
  }
  try {
    const int ranks = std::stoi(arguments[3]);
    const SavedTraining::Settings settings{
        .elements = std::stoull(arguments[1]),
        .tensors = std::stoull(arguments[2]),
        .folder = arguments[0]};
    Result result;
    comm::run_local_ranks(ranks, [&](comm::Communicator& of_rank) {
      run(of_rank, settings, std::stoi(arguments[4]), result);
    });
    fmt::print(
        "{{\"elements\": {}, \"tensors\": {}, \"ranks\": {}, \"save\": {}, "
        "\"load\": {}, \"bytes\": {}, \"manifest\": {}}}\n",
        settings.elements, settings.tensors, ranks, median(result.save_seconds),
        median(result.load_seconds), result.bytes, result.manifest_bytes);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "saved_ranks: %s\n", error.what());
    return 1;
  }
  return 0;
}
