// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

/// The only place where the library reads the environment; docs/env.md lists
/// every variable. A malformed THINWIRE_ variable throws
/// Error(kInvalidArgument) with its name, the accepted values and the value.
/// Malformed variables of launchers are ignored. comm::from_environment()
/// checks THINWIRE_COMM.
namespace thinwire::env {

/// Returns THINWIRE_NUM_THREADS, in [1, 1024], or 0 if it is not set.
[[nodiscard]] int num_threads();

/// Returns THINWIRE_TIMEOUT ("5s", "500ms", "10min", "2h"), or 10 minutes if it
/// is not set.
[[nodiscard]] std::chrono::milliseconds timeout();

/// Returns THINWIRE_COMM, the name of a communicator backend, if it is set.
[[nodiscard]] std::optional<std::string> comm_backend();

/// Use of software prefetch that THINWIRE_PREFETCH requests.
enum class Prefetch { kAuto, kOn, kOff };

/// Returns THINWIRE_PREFETCH ("auto", "on", "off"), or kAuto if it is not set.
[[nodiscard]] Prefetch prefetch();

/// Returns THINWIRE_SIMD, the name of a SIMD target, if it is set. The kernels
/// check the name.
[[nodiscard]] std::optional<std::string> simd();

/// Returns THINWIRE_RANKS_PER_HOST, >= 1, or 0 if it is not set.
[[nodiscard]] int ranks_per_host();

/// A variable that a launcher has set, and its value.
struct Announced {
  std::string variable;
  int value = 0;
};
/// Returns the number of ranks on this host, as set by a launcher (mpirun,
/// torchrun) whose job has exactly `ranks` ranks. Returns nothing if no
/// launcher has.
[[nodiscard]] std::optional<Announced> launched_on_host(int ranks);

/// Returns the number of ranks that this process's launcher (mpirun, srun) has
/// announced, or 1 if there is no launcher.
[[nodiscard]] int launched_ranks();
/// Returns whether that launcher is mpirun or mpiexec, which end all ranks with
/// SIGTERM when one rank has died.
[[nodiscard]] bool launched_by_mpirun();
/// Returns this process's rank if its launcher has announced it. Used in
/// messages that are written before a communicator exists.
[[nodiscard]] std::optional<int> launched_rank();

}  // namespace thinwire::env
