// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <iosfwd>
#include <string>

namespace thinwire::commands {

/// Parses the command line and runs the callbacks that it calls for. Adds
/// --version to `app` and its subcommands. Returns the exit code of every
/// program of ours: 0 it is done, 1 a callback threw (its message is one line
/// on `err`), 2 wrong usage (the same).
[[nodiscard]] int run_app(CLI::App& app, int argc, const char* const* argv,
                          std::ostream& out, std::ostream& err);

/// Returns a message of several lines as one.
[[nodiscard]] std::string one_line(const std::string& text);

}  // namespace thinwire::commands
