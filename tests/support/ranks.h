// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "thinwire/comm/local.h"
#include "thinwire/comm/registry.h"
#include "thinwire/core/env.h"

namespace thinwire::test {

/// A backend and its number of ranks in a test.
struct Group {
  std::string backend;
  int world_size = 1;

  friend std::ostream& operator<<(std::ostream& out, const Group& group) {
    return out << group.backend << group.world_size;
  }
};

/// Returns the groups of `smallest` or more ranks that this process can test.
/// These are `local` ones. If the program runs under mpirun with
/// THINWIRE_COMM=mpi, it is the job itself, or none if the job is smaller.
inline std::vector<Group> groups(int smallest = 1) {
  std::vector<Group> result;
  if (env::comm_backend().value_or("local") != "local") {
    result.push_back({*env::comm_backend(), env::launched_ranks()});
  } else {
    for (const int world_size : {1, 2, 3, 4, 8})
      result.push_back({"local", world_size});
  }
  std::erase_if(result, [smallest](const Group& group) {
    return group.world_size < smallest;
  });
  return result;
}

/// Long enough for a busy machine and every sanitizer.
inline constexpr comm::CommunicatorOptions kPatient{
    .timeout = std::chrono::seconds(60)};

/// Calls body(communicator) for every rank of the group, each on its own
/// thread. In a job, calls it for the rank that this process is.
inline void run_ranks(std::string_view backend, int world_size,
                      const std::function<void(comm::Communicator&)>& body,
                      const comm::CommunicatorOptions& options = kPatient) {
  if (backend == "local")
    return comm::run_local_ranks(world_size, body, options);
  for (const comm::Backend& known : comm::backends()) {
    if (known.name != backend) continue;
    const auto job = known.make(options);
    if (job->size() != world_size)
      throw std::invalid_argument("run_ranks: the job has another size");
    return body(*job);
  }
  throw std::invalid_argument("run_ranks: no such backend");
}

inline void run_ranks(const Group& group,
                      const std::function<void(comm::Communicator&)>& body,
                      const comm::CommunicatorOptions& options = kPatient) {
  run_ranks(group.backend, group.world_size, body, options);
}

}  // namespace thinwire::test
