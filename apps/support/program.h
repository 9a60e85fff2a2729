// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace thinwire::apps {

/// Writes what the library logs (thinwire/core/log.h), but for what is only of
/// use to find a fault, to stderr: "PROGRAM: warning: TEXT".
void log_to_stderr(const std::string& program);

/// log_to_stderr(); then parses the command line and runs the callbacks that it
/// calls for. Adds
/// --version to `app` and its subcommands. Returns the exit code of every
/// program of ours: 0 it is done, 1 a callback threw (its message is one line
/// on stderr), 2 wrong usage (the same).
[[nodiscard]] int run_program(CLI::App& app, int argc, const char* const* argv);

}  // namespace thinwire::apps
