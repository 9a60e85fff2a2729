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

/// THINWIRE_RANKS_PER_HOST, >= 1; 0 when not set.
[[nodiscard]] int ranks_per_host();

/// What a launcher announced in one of its variables.
struct Announced {
  std::string variable;
  int value = 0;
};
/// How many ranks of a job of `ranks` are on this host, if the launcher of such
/// a job said so (mpirun, torchrun).
[[nodiscard]] std::optional<Announced> launched_on_host(int ranks);

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
