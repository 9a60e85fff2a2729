// SPDX-License-Identifier: Apache-2.0
#include "commands/commands.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <ostream>
#include <sstream>
#include <string>
#include <vector>

namespace thinwire::commands {

namespace {

constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

void add_version(CLI::App& app) {
  app.set_version_flag("--version", "thinwire " THINWIRE_VERSION);
  for (CLI::App* command : app.get_subcommands({})) add_version(*command);
}

}  // namespace

// Joins the lines of a message ("rank 0 says ..., rank 1 says ..."), because
// readers of stderr expect one line. Leaves out LibTorch's stack traces.
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

int run_app(CLI::App& app, int argc, const char* const* argv, std::ostream& out,
            std::ostream& err) {
  // Writes a line in one piece, because ranks share stderr and parts of their
  // lines could mix.
  const auto complain = [&](const std::string& what) {
    err << app.get_name() + ": " + one_line(what) + '\n' << std::flush;
  };
  add_version(app);
  try {
    app.parse(argc, argv);
    out.flush();
    if (!out) {
      complain("the results could not be written to stdout");
      return kFailed;
    }
    return kDone;
  } catch (const CLI::RequiredError& error) {
    // CLI11 reports missing flags before unknown ones, although an unknown flag
    // may be a misspelt missing one.
    std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
    std::ranges::reverse(unknown);  // ExtrasError reverses the order
    const std::string what =
        unknown.empty() ? error.what() : CLI::ExtrasError(unknown).what();
    complain(what + " (see --help)");
    return kWrongUsage;
  } catch (const CLI::ParseError& error) {
    // CLI11 throws for --help and --version as well, with exit code 0.
    if (error.get_exit_code() == 0) return app.exit(error, out, err);
    complain(std::string(error.what()) + " (see --help)");
    return kWrongUsage;
  } catch (const std::exception& error) {
    complain(error.what());
    return kFailed;
  }
}

int run_commands(const std::string& program,
                 const std::vector<std::string>& arguments,
                 const Front& front) {
  CLI::App app("Tools around Thinwire", program);
  app.require_subcommand(1);
  add_plan(app, front);
  add_doctor(app, front);
  add_config(app, front);
  std::vector<const char*> argv{program.c_str()};
  for (const std::string& argument : arguments)
    argv.push_back(argument.c_str());
  return run_app(app, static_cast<int>(argv.size()), argv.data(), front.out,
                 front.err);
}

}  // namespace thinwire::commands
