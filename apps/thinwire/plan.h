// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>

namespace thinwire::apps {

/// thinwire plan
void add_plan(CLI::App& app);

}  // namespace thinwire::apps
