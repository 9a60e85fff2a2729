// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "thinwire/comm/communicator.h"

namespace thinwire::comm {

/// One way to reach other processes (or, for "local", none).
struct Backend {
  std::string_view name;
  /// Empty if this build and machine have it, else why not.
  std::string (*why_unavailable)();
  /// Library and version in use, for `thinwire doctor`; "" if unavailable.
  std::string (*version)();
  /// The whole job's group.
  std::unique_ptr<Communicator> (*make)(const CommunicatorOptions&);
};

/// Every backend this source tree knows, available or not.
[[nodiscard]] std::span<const Backend> backends();

/// The group of the job this process belongs to: THINWIRE_COMM names the
/// backend; otherwise "mpi" under mpirun or srun, else a "local" group of one.
/// The time-out is THINWIRE_TIMEOUT. Collective. Throws Error(kUnavailable) if
/// the backend is not in this build, and if a launcher started several ranks
/// but the chosen backend would run each of them alone.
[[nodiscard]] std::unique_ptr<Communicator> from_environment();

}  // namespace thinwire::comm
