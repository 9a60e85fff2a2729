// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <stdexcept>

#include "apps/train_gpt/options/options.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::train_gpt {

/// How a rank's part of a run has ended, if nothing was thrown.
enum class Ending {
  kDone,
  kFailedElsewhere,  ///< Another rank tells why.
  kStopped,          ///< On a signal; its checkpoint is complete.
};

/// The ranks that this process is, and how they end.
class Launch {
 public:
  /// Calls `body` once for every rank of this process. Throws what a rank threw
  /// first, with its number in front of the message.
  void run(const Options& options,
           const std::function<Ending(comm::Communicator&)>& body);

  /// The worst that a `body` returned.
  [[nodiscard]] Ending ending() const noexcept { return ending_; }
  /// Processes were left in the middle of their work, and some of them may
  /// never answer again: MPI_Finalize would wait for them.
  [[nodiscard]] bool is_broken() const noexcept { return is_broken_; }

 private:
  void run_process(const Options& options,
                   const std::function<Ending(comm::Communicator&)>& body);
  void run_threads(const Options& options,
                   const std::function<Ending(comm::Communicator&)>& body);

  Ending ending_ = Ending::kDone;
  bool is_broken_ = false;
};

/// A run that a signal has ended; its message says which one and where.
class Stopped : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace thinwire::train_gpt
