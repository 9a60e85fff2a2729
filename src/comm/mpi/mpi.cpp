// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi.h"

#include <mpi.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>
#include <vector>

#include "comm/deadline.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/mpi/process.h"
#include "thinwire/core/error.h"

namespace thinwire::comm::mpi {
namespace {

// The transport that every group of the whole job is split from. It is never
// destroyed: other ranks must not take the end of this process for a failure.
MpiTransport& job() {
  static MpiTransport* const transport = [] {
    Process& process = Process::get();
    int rank = 0;
    int size = 0;
    {
      const auto lock = process.enter();
      check(MPI_Comm_rank(process.comm(), &rank), "MPI_Comm_rank");
      check(MPI_Comm_size(process.comm(), &size), "MPI_Comm_size");
    }
    std::vector<int> members(static_cast<std::size_t>(size));
    std::iota(members.begin(), members.end(), 0);
    constexpr int kGroup = 0;
    return new MpiTransport(std::move(members), rank, kGroup);
  }();
  return *transport;
}

}  // namespace

std::string why_unavailable() { return {}; }

std::string version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string all(text, static_cast<std::size_t>(std::max(length, 0)));
  return all.substr(0, all.find_first_of(",\n"));
}

std::unique_ptr<Communicator> make(const CommunicatorOptions& options) {
  static std::mutex mutex;
  static std::uint64_t sequence = 0;
  const std::lock_guard lock(mutex);
  const auto deadline = deadline_after(options.timeout);
  Process::get().start(deadline);
  auto transport =
      job().split(0, 0, Operation{"joining the MPI job", ++sequence, deadline});
  if (options.reduction == Reduction::kNative)
    static_cast<MpiTransport&>(*transport).enable_native(deadline);
  return std::make_unique<Communicator>(std::move(transport), options);
}

}  // namespace thinwire::comm::mpi
