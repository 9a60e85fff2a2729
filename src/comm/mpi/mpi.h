// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "thinwire/comm/communicator.h"

/// The ranks of an MPI job. MPI is initialized on first use, with
/// MPI_THREAD_MULTIPLE, unless the program has done so. This library finalizes
/// it at exit if it initialized it and nothing has failed.
///
/// MPI cannot cancel an operation that will never end. After a failed exchange
/// this library therefore makes no further MPI call in the process. Every other
/// MPI communicator fails as well, and the memory of unfinished messages is
/// never touched again. A program that still calls MPI by itself must keep that
/// memory alive.
namespace thinwire::comm::mpi {

/// Empty if this build has MPI, else why not.
[[nodiscard]] std::string why_unavailable();
/// "Open MPI v4.1.4"; "" if unavailable.
[[nodiscard]] std::string version();
/// The group of all ranks of the job. Collective. Throws Error(kUnavailable) if
/// MPI cannot be used, Error(kCommFailure) if a rank does not come.
[[nodiscard]] std::unique_ptr<Communicator> make(
    const CommunicatorOptions& options);
/// The group of a communicator of the caller's own MPI, by its Fortran handle.
/// Collective over it. Throws Error(kInvalidArgument) if the handle is not one
/// of an intra-communicator, Error(kFailedPrecondition) if MPI is not
/// initialized, otherwise as make() does.
[[nodiscard]] std::unique_ptr<Communicator> adopt(
    int fortran_handle, const CommunicatorOptions& options);

}  // namespace thinwire::comm::mpi
