// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <mutex>

#include "examples/train_gpt/options/options.h"
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
  using Body = std::function<Ending(comm::Communicator&)>;

  /// Calls `body` once for every rank of this process. Throws what a rank threw
  /// first, with its number in front of the message.
  void run(const Options& options, const Body& body);

  /// Returns the worst that a `body` returned.
  [[nodiscard]] Ending ending() const noexcept { return ending_; }
  /// Returns whether processes were left in the middle of their work: some of
  /// them may never answer again, and MPI_Finalize would wait for them.
  [[nodiscard]] bool is_broken() const noexcept { return is_broken_; }

 private:
  void run_rank(comm::Communicator& comm, const Body& body);
  void run_process(const Options& options, const Body& body);

  std::mutex mutex_;
  Ending ending_ = Ending::kDone;
  bool is_broken_ = false;
};

}  // namespace thinwire::train_gpt
