// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace thinwire::apps {

/// Adds `replay`, which repeats recorded trajectories with the library, bit for
/// bit.
void add_replay(CLI::App& app);

}  // namespace thinwire::apps
