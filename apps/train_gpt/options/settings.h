// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "thinwire/config/config.h"

namespace thinwire::train_gpt {

/// `config` with what --set gives: each of `settings` is KEY=VALUE, where KEY
/// is a key of a file's object "thinwire" ("zero_bits_up", "telemetry.path")
/// and VALUE what stands there, quotes of a text left out. Later ones win.
/// Throws UsageError that names the key.
[[nodiscard]] config::Config with_settings(
    const config::Config& config, const std::vector<std::string>& settings);

}  // namespace thinwire::train_gpt
