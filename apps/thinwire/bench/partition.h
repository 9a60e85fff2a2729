// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace thinwire::apps::bench {

/// Rows and limits divide arrays among threads in multiples of this, so that a
/// thread touches the same part of memory in both.
inline constexpr std::size_t kPieceElements = std::size_t{1} << 16;

}  // namespace thinwire::apps::bench
