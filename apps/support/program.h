// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "thinwire/core/log.h"

namespace thinwire::apps {

/// Writes log messages of the library (thinwire/core/log.h) at this level or
/// above to stderr: "PROGRAM: warning: TEXT".
void log_to_stderr(const std::string& program,
                   LogLevel least = LogLevel::kInfo);

/// Calls log_to_stderr() and commands::run_app() with stdout and stderr.
/// Ignores SIGXFSZ, so that a limit on file sizes is an error of the write.
[[nodiscard]] int run_program(CLI::App& app, int argc, const char* const* argv);

}  // namespace thinwire::apps
