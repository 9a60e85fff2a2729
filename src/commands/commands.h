// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "thinwire/comm/communicator.h"

namespace CLI {
class App;
}

/// The commands that the program `thinwire` and `python -m thinwire` share.
namespace thinwire::commands {

/// The differences between the two programs.
struct Front {
  std::ostream& out;  ///< For results.
  std::ostream& err;  ///< For warnings and errors.
  /// Collective: joins the ranks that a launcher has started. Empty if this
  /// process runs alone.
  std::function<std::shared_ptr<comm::Communicator>()> join{};

  /// Lines of doctor about what the library does not know: a name and a text.
  std::vector<std::pair<std::string, std::string>> lines{};
  std::vector<std::string> advice{};  ///< Suggestions for this machine.
  /// Whether this program was started where it was built, so that a clone with
  /// its scripts is there.
  bool is_in_build_tree = false;
  /// Why this program cannot train here; if it is empty, it can.
  std::string not_ready{};
  /// Measures copies from pinned memory to the device of this machine, in GB/s;
  /// 0 if there is none. Empty if the program knows no devices.
  std::function<double()> copies_gbps{};
  /// It has transports that replace those which this build lacks.
  bool has_transports = false;
};

/// Adds plan: what a step would take, send and keep with each way to average.
/// Like all commands, it keeps a reference to `front`.
void add_plan(CLI::App& app, const Front& front);

/// Adds doctor, which reports on this machine and build. In a job of several
/// ranks it is collective. Rank 0 prints its own report, the ranks of each
/// host, and one line for each difference. If the ranks cannot reach each
/// other, each prints its report and fails.
void add_doctor(CLI::App& app, const Front& front);

/// Adds config check: what becomes of each key of a configuration file.
void add_config(CLI::App& app, const Front& front);

/// Parses the command line and runs the selected callbacks. Adds --version to
/// `app` and its subcommands. Returns 0 on success, 1 if a callback threw, and
/// 2 for wrong usage. Errors are one line on `err`.
[[nodiscard]] int run_app(CLI::App& app, int argc, const char* const* argv,
                          std::ostream& out, std::ostream& err);

/// Calls run_app() for a program that has the commands above. `arguments` begin
/// after its name.
[[nodiscard]] int run_commands(const std::string& program,
                               const std::vector<std::string>& arguments,
                               const Front& front);

/// Returns a message of several lines as one.
[[nodiscard]] std::string one_line(const std::string& text);

}  // namespace thinwire::commands
