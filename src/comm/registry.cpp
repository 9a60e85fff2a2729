// SPDX-License-Identifier: Apache-2.0
#include "thinwire/comm/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "comm/mpi/mpi.h"
#include "core/require.h"
#include "thinwire/comm/local.h"
#include "thinwire/core/env.h"
#include "thinwire/core/error.h"

namespace thinwire::comm {
namespace {

// Makes a local group of one for a process without peers.
std::unique_ptr<Communicator> make_alone(const CommunicatorOptions& options) {
  return std::move(make_local_group(1, options).front());
}

constexpr std::array kBackends = {
    Backend{.name = "local",
            .why_unavailable = [] { return std::string(); },
            .version = [] { return std::string("threads of one process"); },
            .make = make_alone},
    Backend{.name = "mpi",
            .why_unavailable = mpi::why_unavailable,
            .version = mpi::version,
            .make = mpi::make},
};

const Backend& find_backend(std::string_view name) {
  std::string known;
  for (const Backend& backend : kBackends) {
    if (backend.name == name) return backend;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", backend.name);
  }
  reject(
      fmt::format("THINWIRE_COMM must be one of {}, got \"{}\"", known, name));
}

}  // namespace

std::span<const Backend> backends() { return kBackends; }

std::unique_ptr<Communicator> from_environment() {
  const int launched = env::launched_ranks();
  const Backend& backend = find_backend(
      env::comm_backend().value_or(launched > 1 ? "mpi" : "local"));
  if (const std::string why = backend.why_unavailable(); !why.empty()) {
    throw Error(ErrorCode::kUnavailable,
                fmt::format("communicator backend {} is not available: {}",
                            backend.name, why));
  }
  auto comm = backend.make({.timeout = env::timeout()});
  if (launched > 1 && comm->size() == 1) {
    throw Error(ErrorCode::kUnavailable,
                fmt::format("a launcher started {} ranks, but communicator "
                            "backend {} would run each of them alone; set "
                            "THINWIRE_COMM=mpi and use the launcher of the MPI "
                            "that this build has",
                            launched, backend.name));
  }
  return comm;
}

std::unique_ptr<Communicator> from_mpi(int fortran_handle,
                                       const CommunicatorOptions& options) {
  return mpi::adopt(fortran_handle, options);
}

}  // namespace thinwire::comm
