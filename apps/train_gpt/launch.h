// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <stdexcept>
#include <string_view>

#include "apps/train_gpt/options/options.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::train_gpt {

/// The ranks that this process is, and how they end.
class Launch {
 public:
  /// Calls `body` once for every rank of this process. Throws what a rank threw
  /// first, with its number in front of the message.
  void run(const Options& options,
           const std::function<bool(comm::Communicator&)>& body);

  /// A `body` returned false: another rank tells why.
  [[nodiscard]] bool failed_elsewhere() const noexcept {
    return failed_elsewhere_;
  }
  /// Processes were left in the middle of their work, and some of them may
  /// never answer again: MPI_Finalize would wait for them.
  [[nodiscard]] bool is_broken() const noexcept { return is_broken_; }

 private:
  void run_process(const Options& options,
                   const std::function<bool(comm::Communicator&)>& body);
  void run_threads(const Options& options,
                   const std::function<bool(comm::Communicator&)>& body);

  bool failed_elsewhere_ = false;
  bool is_broken_ = false;
};

/// A run that a signal has ended; its message says which one and where.
class Stopped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Makes SIGINT and SIGTERM, which mpirun sends to all ranks when one of them
/// has died, end the exchange or step under way with an Error instead of
/// killing the process. A second one kills. SIGINT stays ignored where it was.
void stop_on_signals();
/// The signal that has come since, or 0; and "SIGINT", "SIGTERM", or "".
[[nodiscard]] int stop_signal() noexcept;
[[nodiscard]] std::string_view stop_signal_name() noexcept;

}  // namespace thinwire::train_gpt
