// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <iostream>
#include <thread>

#include "apps/support/program.h"
#include "apps/train_gpt/launch.h"
#include "apps/train_gpt/options/command_line.h"
#include "apps/train_gpt/report/report.h"
#include "apps/train_gpt/report/run_record.h"
#include "apps/train_gpt/signals.h"
#include "apps/train_gpt/trainer.h"

namespace {

using namespace thinwire::train_gpt;

// mpirun kills all ranks soon after the first has ended: the others get this
// long to say what they saw.
constexpr auto kLinger = std::chrono::milliseconds(1500);

// Saved, to be run again with --resume auto.
constexpr int kStopped = 3;
// As shells say it: 130 for SIGINT, 143 for SIGTERM.
constexpr int kInterrupted = 128;

void compare(const Invocation& invocation) {
  std::vector<RunRecord> runs;
  for (const auto& folder : invocation.compare) {
    runs.push_back(read_run(folder));
  }
  const std::filesystem::path out = invocation.options.out;
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
    const Invocation& invocation = command_line.finish();
    if (!invocation.compare.empty()) {
      compare(invocation);
    } else {
      if (invocation.options.quiet)
        thinwire::apps::log_to_stderr(app.get_name(),
                                      thinwire::LogLevel::kWarning);
      handle_signals(invocation.options.saving.signals);
      launch.run(invocation.options, [&](thinwire::comm::Communicator& comm) {
        return train(invocation.options, comm);
      });
    }
  });
  int code = thinwire::apps::run_program(app, argc, argv);
  if (code != 0 && stop_signal() != 0) code = kInterrupted + stop_signal();
  if (launch.is_broken()) {
    std::this_thread::sleep_for(kLinger);
    _exit(code);
  }
  switch (launch.ending()) {
    case Ending::kFailedElsewhere:
      return 1;
    case Ending::kStopped:
      return kStopped;
    case Ending::kDone:
      break;
  }
  return code;
}
