// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "commands/commands.h"

namespace thinwire::commands {

/// Adds config check: what becomes of each key of a configuration file.
void add_config(CLI::App& app, const Front& front);

}  // namespace thinwire::commands
