// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

/// A way to reach other processes, except "local", which has only one process.
struct Backend {
  std::string_view name;
  /// Returns the reason why this build or machine lacks the backend, or "".
  std::string (*why_unavailable)();
  /// Returns library and version for `thinwire doctor`; "" if unavailable.
  std::string (*version)();
  /// Creates the group of the whole job.
  std::unique_ptr<Communicator> (*make)(const CommunicatorOptions&);
};

/// Returns every backend in this source tree, whether available or not.
[[nodiscard]] std::span<const Backend> backends();

/// Returns the group of the job that this process belongs to. Collective.
/// THINWIRE_COMM names the backend. If it is not set, the backend is "mpi"
/// under mpirun or srun, otherwise a "local" group of one. The time-out is
/// THINWIRE_TIMEOUT. Throws Error(kUnavailable) if the backend is not in this
/// build. Also throws it if a launcher started several ranks but the chosen
/// backend would run each of them separately.
[[nodiscard]] std::unique_ptr<Communicator> from_environment();

/// Returns the group of an MPI communicator of the program, given by its
/// Fortran handle (`MPI_Comm_c2f(comm)`). Collective over that communicator,
/// which may be freed afterwards, because a duplicate is kept until MPI is
/// finalized. Throws Error(kUnavailable) if this build has no MPI, or if MPI
/// was initialized without MPI_THREAD_MULTIPLE. Throws
/// Error(kFailedPrecondition) if MPI is not initialized. Throws
/// Error(kInvalidArgument) if this is not the handle of an intra-communicator.
/// Throws Error(kCommFailure) if a rank is missing at the time-out.
[[nodiscard]] std::unique_ptr<Communicator> from_mpi(
    int fortran_handle, const CommunicatorOptions& options = {});

}  // namespace thinwire::comm
