// SPDX-License-Identifier: Apache-2.0
#include <iostream>
#include <string>
#include <vector>

#include "thinwire/comm/run.h"
#include "thinwire/config/config.h"

// Reads a DeepSpeed configuration and prints the effect of each of its keys.
void explain(thinwire::comm::Communicator& comm, const std::string& path) {
  std::vector<thinwire::config::KeyNote> notes;
  const auto config = thinwire::config::Config::from_file(
      path, &notes,
      {.total_num_steps = 500, .warmup_num_steps = 50, .learning_rate = 1e-3},
      {"my_program"});
  config.validate(comm.size());
  if (comm.rank() != 0) return;
  for (const auto& note : notes) std::cout << describe(note) << '\n';
  const auto mine = config.other_objects.find("my_program");
  if (mine != config.other_objects.end())
    std::cout << "left to this program: " << mine->second << '\n';
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: ds_config FILE\n";
    return 2;
  }
  return thinwire::comm::run(
      [&](thinwire::comm::Communicator& comm) { explain(comm, argv[1]); });
}
