// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace thinwire::apps {

/// Adds `bench`, which compares kernels, whole steps and exchanges with this
/// machine's own limits.
void add_bench(CLI::App& app);

}  // namespace thinwire::apps
