// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <mutex>

#include "examples/train_gpt/options/options.h"
#include "thinwire/comm/communicator.h"

namespace thinwire::train_gpt {

/// How a rank's part of a run has ended, unless it threw.
enum class Ending {
  kDone,
  kFailedElsewhere,  ///< Another rank reports why.
  kStopped,          ///< By a signal; its checkpoint is complete.
};

/// The ranks of this process, and how they end.
class Launch {
 public:
  using Body = std::function<Ending(comm::Communicator&)>;

  /// Calls `body` once for every rank of this process. Throws the first error
  /// of a rank, with its number in front of the message.
  void run(const Options& options, const Body& body);

  /// Returns the worst ending of a `body`.
  [[nodiscard]] Ending ending() const noexcept { return ending_; }
  /// Returns whether processes are stuck in the middle of their work. Some of
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
