// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>

/// The only place where the library reads the environment; docs/env.md lists
/// every variable. Malformed values throw Error(kInvalidArgument) naming the
/// variable, what it accepts and what it held.
namespace thinwire::env {

/// THINWIRE_NUM_THREADS, in 1 .. 1024; 0 when not set.
[[nodiscard]] int num_threads();

/// THINWIRE_TIMEOUT ("5s", "500ms", "10min", "2h"); 10 minutes when not set.
[[nodiscard]] std::chrono::milliseconds timeout();

/// THINWIRE_COMM: the communicator backend asked for, if any.
[[nodiscard]] std::optional<std::string> comm_backend();

/// What THINWIRE_PREFETCH asks of the kernels.
enum class Prefetch { kAuto, kOn, kOff };

/// THINWIRE_PREFETCH ("auto", "on", "off"); kAuto when not set.
[[nodiscard]] Prefetch prefetch();

/// How many ranks the launcher that started this process (mpirun, srun)
/// announced in its variables; 1 when there was none.
[[nodiscard]] int launched_ranks();
/// That launcher was mpirun or mpiexec, which ends all ranks with SIGTERM when
/// one has died.
[[nodiscard]] bool launched_by_mpirun();
/// Which of them this process is, if its launcher said so: for messages from
/// before there is a communicator.
[[nodiscard]] std::optional<int> launched_rank();

}  // namespace thinwire::env
