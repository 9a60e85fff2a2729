// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

#include "checkpoint/disk/file_system.h"

namespace thinwire::checkpoint {

/// File systems of several hosts show late to one what another has made: how
/// long that may take.
inline constexpr std::chrono::milliseconds kPatience = std::chrono::seconds(30);

/// Calls is_there() until it says so; the pauses in between grow from 1 ms to
/// 1 s. Returns false once they come to `patience`.
template <class IsThere>
[[nodiscard]] bool keep_looking(FileSystem& files,
                                std::chrono::milliseconds patience,
                                const IsThere& is_there) {
  using std::chrono::milliseconds;
  milliseconds waited{0};
  for (milliseconds pause{1}; !is_there();
       pause = std::min(2 * pause, milliseconds(1000))) {
    if (waited >= patience) return false;
    files.wait(pause);
    waited += pause;
  }
  return true;
}

}  // namespace thinwire::checkpoint
