// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace thinwire::checkpoint {

/// Returns whether earlier versions had `path`, for example "thinwire.scale",
/// as an option that now has only one value.
[[nodiscard]] bool is_removed_option(std::string_view path);

/// Throws Error(kCorruptCheckpoint), which names the option, if the run that
/// saved a checkpoint used a value that no longer exists. `config` is that
/// run's configuration. Accepts a text that is not JSON.
void require_no_removed_option(const std::string& config);

}  // namespace thinwire::checkpoint
