// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

/// The commands of this program alone; src/commands has those that Python has
/// too.
namespace thinwire::apps {

/// Adds `bench`, which compares kernels, whole steps and exchanges with this
/// machine's own limits.
void add_bench(CLI::App& app);
/// Adds `checkpoint`: ls, show, verify and export.
void add_checkpoint(CLI::App& app);
/// Adds `replay`, which repeats recorded trajectories with the library, bit for
/// bit.
void add_replay(CLI::App& app);

}  // namespace thinwire::apps
