// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace thinwire::apps {

/// Adds `checkpoint`: ls, show, verify, diff and export.
void add_checkpoint(CLI::App& app);

}  // namespace thinwire::apps
