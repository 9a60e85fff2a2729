// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "thinwire/core/log.h"

namespace thinwire::apps {

/// Writes what the library logs (thinwire/core/log.h), from this level on, to
/// stderr: "PROGRAM: warning: TEXT".
void log_to_stderr(const std::string& program,
                   LogLevel least = LogLevel::kInfo);

/// log_to_stderr(); then parses the command line and runs the callbacks that it
/// calls for. Adds
/// --version to `app` and its subcommands. Returns the exit code of every
/// program of ours: 0 it is done, 1 a callback threw (its message is one line
/// on stderr), 2 wrong usage (the same).
[[nodiscard]] int run_program(CLI::App& app, int argc, const char* const* argv);

}  // namespace thinwire::apps
