// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

#include "commands/commands.h"

namespace thinwire::commands {

/// Adds plan: what a step would take, send and keep with each way to average.
void add_plan(CLI::App& app, const Front& front);

}  // namespace thinwire::commands
