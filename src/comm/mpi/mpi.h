// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "thinwire/comm/communicator.h"

/// Groups of ranks of an MPI job. MPI is initialized on first use, with
/// MPI_THREAD_MULTIPLE, unless the program has already done so. If this library
/// has initialized MPI and nothing has failed, it finalizes MPI at exit.
///
/// MPI cannot cancel an operation that will never end. After a failed exchange
/// this library therefore makes no further MPI call in the process. Every other
/// MPI communicator fails as well, and the memory of unfinished messages is
/// never reused. A program that calls MPI itself must keep that memory
/// allocated.
namespace thinwire::comm::mpi {

/// Returns the reason why this build cannot use MPI, or "" if it can.
[[nodiscard]] std::string why_unavailable();
/// Returns a text such as "Open MPI v4.1.4", or "" if MPI is unavailable.
[[nodiscard]] std::string version();
/// Returns the group of all ranks of the job. Collective. Throws
/// Error(kUnavailable) if MPI cannot be used, and Error(kCommFailure) if a rank
/// does not come.
[[nodiscard]] std::unique_ptr<Communicator> make(
    const CommunicatorOptions& options);
/// Returns the group of one of the caller's MPI communicators, given by its
/// Fortran handle. Collective over it. Throws Error(kInvalidArgument) if this
/// is not the handle of an intra-communicator, and Error(kFailedPrecondition)
/// if MPI is not initialized. Otherwise throws like make().
[[nodiscard]] std::unique_ptr<Communicator> adopt(
    int fortran_handle, const CommunicatorOptions& options);

}  // namespace thinwire::comm::mpi
