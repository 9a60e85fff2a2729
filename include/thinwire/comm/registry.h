// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

/// One way to reach other processes; "local" reaches none.
struct Backend {
  std::string_view name;
  /// Returns "" if this build and machine have it, otherwise the reason why
  /// not.
  std::string (*why_unavailable)();
  /// Returns library and version for `thinwire doctor`; "" if unavailable.
  std::string (*version)();
  /// Makes the group of the whole job.
  std::unique_ptr<Communicator> (*make)(const CommunicatorOptions&);
};

/// Returns every backend that this source tree knows, available or not.
[[nodiscard]] std::span<const Backend> backends();

/// Returns the group of the job that this process belongs to. Collective.
/// THINWIRE_COMM names the backend. If it is not set, the backend is "mpi"
/// under mpirun or srun, otherwise a "local" group of one. The time-out is
/// THINWIRE_TIMEOUT. Throws Error(kUnavailable) if the backend is not in this
/// build. Throws it also if a launcher started several ranks but the chosen
/// backend would run each of them alone.
[[nodiscard]] std::unique_ptr<Communicator> from_environment();

}  // namespace thinwire::comm
