// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "thinwire/core/parameter_layout.h"

namespace thinwire {

[[nodiscard]] inline std::size_t total_size(
    std::span<const Range> ranges) noexcept {
  std::size_t size = 0;
  for (const Range& range : ranges) size += range.size;
  return size;
}

/// Adds a range, or extends the last range if the new one begins at its end.
inline void append_joined(std::vector<Range>& ranges, const Range& range) {
  if (!ranges.empty() && ranges.back().end() == range.offset)
    ranges.back().size += range.size;
  else
    ranges.push_back(range);
}

}  // namespace thinwire
