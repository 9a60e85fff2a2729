// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace thinwire::apps {

/// Adds `bench`: kernels, whole steps and exchanges against this machine's own
/// limits.
void add_bench(CLI::App& app);

}  // namespace thinwire::apps
