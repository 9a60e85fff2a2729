// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <thread>

#include "apps/support/program.h"
#include "examples/train_gpt/launch.h"
#include "examples/train_gpt/options/command_line.h"
#include "examples/train_gpt/report/report.h"
#include "examples/train_gpt/report/run_folder.h"
#include "examples/train_gpt/signals.h"
#include "examples/train_gpt/trainer.h"

namespace {

using namespace thinwire::train_gpt;

// mpirun kills all ranks soon after the first has ended. The others have this
// long to print their errors.
constexpr auto kLinger = std::chrono::milliseconds(1500);
constexpr int kStopped = 3;        // saved; resume with --resume auto
constexpr int kInterrupted = 128;  // plus the signal's number, as in shells

void compare(const Invocation& asked) {
  std::vector<RunRecord> runs;
  for (const auto& folder : asked.compare) runs.push_back(read_run(folder));
  const std::filesystem::path out = asked.options.out;
  std::filesystem::create_directories(out);
  write_file(out / "report.html", render_report(runs));
  std::cout << render_table(runs)
            << "report: " << (out / "report.html").string() << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a byte-level GPT on any text, data-parallel",
               "train_gpt");
  CommandLine command_line(app);
  Launch launch;
  app.callback([&] {
    const Invocation& asked = command_line.finish();
    if (!asked.compare.empty()) {
      compare(asked);
      return;
    }
    if (asked.options.quiet)
      thinwire::apps::log_to_stderr(app.get_name(),
                                    thinwire::LogLevel::kWarning);
    handle_signals(asked.saving.signals);
    launch.run(asked.options, [&](thinwire::comm::Communicator& comm) {
      return train(asked, comm);
    });
  });
  int code = thinwire::apps::run_program(app, argc, argv);
  if (code != 0 && stop_signal() != 0) code = kInterrupted + stop_signal();
  if (launch.is_broken()) {
    std::this_thread::sleep_for(kLinger);
    _exit(code);
  }
  if (launch.ending() == Ending::kFailedElsewhere) return 1;
  if (launch.ending() == Ending::kStopped) return kStopped;
  return code;
}
