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
  /// Joins the ranks that a launcher has started. Empty if this process runs
  /// alone. Collective.
  std::function<std::shared_ptr<comm::Communicator>()> join{};

  /// Additional lines of doctor, each with a name and a text.
  std::vector<std::pair<std::string, std::string>> lines{};
  std::vector<std::string> advice{};  ///< Suggestions for this machine.
  /// Whether this program runs from its build tree, which has the scripts of a
  /// clone.
  bool is_in_build_tree = false;
  /// The reason why this program cannot train on this machine, or empty if it
  /// can.
  std::string not_ready{};
  /// Returns the rate of copies from pinned memory to the device of this
  /// machine in GB/s, or 0 without a device. Empty if the program does not
  /// support devices.
  std::function<double()> copies_gbps{};
  /// Whether the program has transports that replace those missing from this
  /// build.
  bool has_transports = false;
};

/// Adds plan, which predicts time, traffic and memory of a step for each way to
/// average. Like all commands, it keeps a reference to `front`.
void add_plan(CLI::App& app, const Front& front);

/// Adds doctor, which reports on this machine and build. In a job of several
/// ranks it is collective. Rank 0 prints its own report, the ranks of each
/// host, and one line for each difference. If the ranks cannot reach each
/// other, each prints its report and fails.
void add_doctor(CLI::App& app, const Front& front);

/// Adds config check, which reports the effect of each key of a configuration
/// file.
void add_config(CLI::App& app, const Front& front);

/// Parses the command line and runs the selected callbacks. Adds --version to
/// `app` and its subcommands. Returns 0 on success, 1 if a callback threw, and
/// 2 for wrong usage. An error is one line on `err`.
[[nodiscard]] int run_app(CLI::App& app, int argc, const char* const* argv,
                          std::ostream& out, std::ostream& err);

/// Calls run_app() for a program that has the commands above. `arguments` begin
/// after its name.
[[nodiscard]] int run_commands(const std::string& program,
                               const std::vector<std::string>& arguments,
                               const Front& front);

/// Returns a message as one line.
[[nodiscard]] std::string one_line(const std::string& text);

}  // namespace thinwire::commands
