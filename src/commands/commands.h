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

/// The commands that the program `thinwire` and `python -m thinwire` share:
/// plan, doctor and config check.
namespace thinwire::commands {

/// What differs between the two programs.
struct Front {
  std::ostream& out;  ///< For results.
  std::ostream& err;  ///< For warnings and errors.
  /// Collective: joins the ranks that a launcher has started. Empty if this
  /// process runs alone.
  std::function<std::shared_ptr<comm::Communicator>()> join{};

  /// Lines of doctor about what the library does not know: a name and a text.
  std::vector<std::pair<std::string, std::string>> lines{};
  std::vector<std::string> advice{};  ///< What would make the machine better.
  /// Why this program cannot train here; if it is empty, it can.
  std::string not_ready{};
  /// It has transports that replace those which this build lacks.
  bool has_transports = false;
};

/// Adds the commands to a program. `front` must outlive `app`.
void add_commands(CLI::App& app, const Front& front);

/// Runs a command line without the program's name, as run_app().
[[nodiscard]] int run_commands(const std::string& program,
                               const std::vector<std::string>& arguments,
                               const Front& front);

}  // namespace thinwire::commands
