// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "commands/commands.h"

namespace thinwire::commands {

/// Adds doctor: what this machine and build have. In a job of several ranks it
/// is collective: rank 0 prints its own report, who is on which host, and one
/// line for each difference. If the ranks cannot reach each other, each prints
/// its report, and an Error is thrown.
void add_doctor(CLI::App& app, const Front& front);

}  // namespace thinwire::commands
