// SPDX-License-Identifier: Apache-2.0
#include "apps/support/program.h"

#include <unistd.h>

#include <exception>
#include <iostream>
#include <sstream>
#include <string>

#include "thinwire/core/log.h"

namespace thinwire::apps {

namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

// Messages may hold several lines ("rank 0 says ..., rank 1 says ..."), but
// what reads stderr is promised one. LibTorch's end with a trace of its calls.
std::string one_line(const std::string& text) {
  std::istringstream lines(text);
  std::string all;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line.starts_with("frame #") ||
        line.starts_with("Exception raised from "))
      continue;
    if (!all.empty()) all += "; ";
    all += line;
  }
  return all;
}

// At once: ranks share one stderr, and parts of lines would mix.
void write(const std::string& line) { std::cerr << line << std::flush; }

void add_version(CLI::App& app) {
  app.set_version_flag("--version", "thinwire " THINWIRE_VERSION);
  for (CLI::App* command : app.get_subcommands({})) add_version(*command);
}

}  // namespace

void log_to_stderr(const std::string& program, LogLevel least) {
  // Instead of a progress bar, which then is drawn again.
  const char* const clear = isatty(STDERR_FILENO) == 1 ? "\r\033[K" : "";
  set_log_sink([program, least, clear](LogLevel level, std::string_view text) {
    if (level < least) return;
    write(clear + program + ": " + std::string(to_string(level)) + ": " +
          one_line(std::string(text)) + '\n');
  });
}

int run_program(CLI::App& app, int argc, const char* const* argv) {
  const auto complain = [&](const std::string& what) {
    write(app.get_name() + ": " + one_line(what) + '\n');
  };
  add_version(app);
  log_to_stderr(app.get_name());
  try {
    app.parse(argc, argv);
    std::cout.flush();
    if (!std::cout) {
      complain("the results could not be written to stdout");
      return kFailed;
    }
    return kDone;
  } catch (const CLI::ParseError& error) {
    // --help and --version come this way as well.
    if (error.get_exit_code() == 0) return app.exit(error);
    complain(std::string(error.what()) + " (see --help)");
    return kWrongUsage;
  } catch (const std::exception& error) {
    complain(error.what());
    return kFailed;
  }
}

}  // namespace thinwire::apps
