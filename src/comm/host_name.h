// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace thinwire::comm {

/// Returns this machine's name, or "unknown".
[[nodiscard]] std::string host_name();

}  // namespace thinwire::comm
