// SPDX-License-Identifier: Apache-2.0
#include "apps/support/program.h"

#include <unistd.h>

#include <csignal>
#include <iostream>
#include <string>

#include "commands/commands.h"
#include "thinwire/core/log.h"

namespace thinwire::apps {

void log_to_stderr(const std::string& program, LogLevel least) {
  // Clears a progress bar, which is then drawn again.
  const char* const clear = isatty(STDERR_FILENO) == 1 ? "\r\033[K" : "";
  set_log_sink([program, least, clear](LogLevel level, std::string_view text) {
    if (level < least) return;
    // Writes each line in one call, because ranks share one stderr and parts of
    // lines would mix.
    std::cerr << clear + program + ": " + std::string(to_string(level)) + ": " +
                     commands::one_line(std::string(text)) + '\n'
              << std::flush;
  });
}

int run_program(CLI::App& app, int argc, const char* const* argv) {
  std::signal(SIGXFSZ, SIG_IGN);
  log_to_stderr(app.get_name());
  return commands::run_app(app, argc, argv, std::cout, std::cerr);
}

}  // namespace thinwire::apps
