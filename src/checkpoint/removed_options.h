// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace thinwire::checkpoint {

/// Whether `path`, "thinwire.scale" say, is a key that configurations of
/// earlier versions had and that has only one meaning left.
[[nodiscard]] bool is_removed_option(std::string_view path);

/// `config` is the configuration of the run that saved a checkpoint. Throws
/// Error(kCorruptCheckpoint), which names the option, if the run used one that
/// does not exist any more. Accepts a text that is no JSON.
void require_no_removed_option(const std::string& config);

}  // namespace thinwire::checkpoint
