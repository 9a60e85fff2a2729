// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi.h"

#include <mpi.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "comm/deadline.h"
#include "comm/mpi/mpi_transport.h"
#include "comm/mpi/process.h"
#include "thinwire/core/error.h"

namespace thinwire::comm::mpi {
namespace {

// Returns the transport of the whole job, from which all groups are split.
// Never destroys the transport, because other ranks must not mistake the end of
// this process for a failure.
MpiTransport& job() {
  static MpiTransport* const transport =
      MpiTransport::of_all(Process::get().comm()).release();
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
  return std::make_unique<Communicator>(std::move(transport), options);
}

std::unique_ptr<Communicator> adopt(int fortran_handle,
                                    const CommunicatorOptions& options) {
  const auto deadline = deadline_after(options.timeout);
  const MPI_Comm comm = Process::get().adopt(fortran_handle, deadline);
  return std::make_unique<Communicator>(MpiTransport::of_all(comm), options);
}

}  // namespace thinwire::comm::mpi
