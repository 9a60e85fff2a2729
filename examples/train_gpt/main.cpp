// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "apps/support/program.h"
#include "examples/train_gpt/agreed_failure.h"
#include "examples/train_gpt/options/command_line.h"
#include "examples/train_gpt/signals.h"
#include "examples/train_gpt/trainer.h"
#include "thinwire/comm/local.h"
#include "thinwire/comm/registry.h"
#include "thinwire/core/env.h"

namespace {

using namespace thinwire;
using namespace thinwire::train_gpt;

// mpirun kills all ranks soon after the first has ended. The others have this
// long to print their errors.
constexpr auto kLinger = std::chrono::milliseconds(1500);
constexpr int kStopped = 3;        // saved; resume with --resume auto
constexpr int kInterrupted = 128;  // plus the signal's number, as in shells

// The ranks of this process, and how they end.
class Launch {
 public:
  using Body = std::function<Ending(comm::Communicator&)>;

  // Calls `body` once for every rank of this process. Throws the first error of
  // a rank, with its number in front of the message.
  void run(const Options& options, const Body& body) {
    if (!options.ranks) return run_process(body);
    comm::run_local_ranks(
        *options.ranks, [&](comm::Communicator& comm) { run_rank(comm, body); },
        {.timeout = env::timeout()});
  }

  // Returns the worst ending of a `body`.
  [[nodiscard]] Ending ending() const noexcept { return ending_; }
  // Returns whether processes are stuck in the middle of their work. Some of
  // them may never answer again, and MPI_Finalize would wait for them.
  [[nodiscard]] bool is_broken() const noexcept { return is_broken_; }

 private:
  void run_rank(comm::Communicator& comm, const Body& body) {
    try {
      const Ending its = body(comm);
      const std::lock_guard lock(mutex_);
      ending_ = std::max(ending_, its);
    } catch (const AgreedFailure&) {
      throw;
    } catch (const std::exception& error) {
      if (comm.size() == 1) throw;
      throw std::runtime_error(
          fmt::format("rank {}: {}", comm.rank(), error.what()));
    }
  }

  void run_process(const Body& body) {
    std::exception_ptr agreed;
    {
      const auto comm = comm::from_environment();
      is_broken_ = comm->size() > 1;
      try {
        run_rank(*comm, body);
      } catch (const AgreedFailure&) {
        // Unwinding would tell the others that this rank gave up, while they
        // may still be reading the agreement.
        agreed = std::current_exception();
      }
      is_broken_ = false;
    }
    if (agreed) std::rethrow_exception(agreed);
  }

  std::mutex mutex_;
  Ending ending_ = Ending::kDone;
  bool is_broken_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a byte-level GPT on any text, data-parallel",
               "train_gpt");
  CommandLine command_line(app);
  Launch launch;
  app.callback([&] {
    const Invocation& asked = command_line.finish();
    if (asked.options.quiet)
      apps::log_to_stderr(app.get_name(), LogLevel::kWarning);
    handle_signals(asked.saving.signals);
    launch.run(asked.options,
               [&](comm::Communicator& comm) { return train(asked, comm); });
  });
  int code = apps::run_program(app, argc, argv);
  if (code != 0 && stop_signal() != 0) code = kInterrupted + stop_signal();
  if (launch.is_broken()) {
    std::this_thread::sleep_for(kLinger);
    _exit(code);
  }
  if (launch.ending() == Ending::kFailedElsewhere) return 1;
  if (launch.ending() == Ending::kStopped) return kStopped;
  return code;
}
