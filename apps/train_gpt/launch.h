// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "apps/train_gpt/options.h"
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

/// Makes SIGTERM, which mpirun sends to all ranks when one of them has died,
/// end the exchange under way with an Error instead of killing the process. A
/// second SIGTERM kills.
void report_sigterm();

}  // namespace thinwire::train_gpt
