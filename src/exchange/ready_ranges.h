// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "thinwire/core/parameter_layout.h"

namespace thinwire::exchange {

/// Elements of a flat array that are marked as ready, range by range.
class ReadyRanges {
 public:
  void add(Range range) {
    if (range.size == 0) return;
    ready_.push_back(range);
    std::ranges::sort(ready_, {}, &Range::offset);
    std::vector<Range> joined;
    for (const Range& next : ready_)
      if (!joined.empty() && joined.back().end() >= next.offset)
        joined.back().size =
            std::max(joined.back().end(), next.end()) - joined.back().offset;
      else
        joined.push_back(next);
    ready_ = std::move(joined);
  }
  void clear() noexcept { ready_.clear(); }

  /// Returns whether all elements of `range` are ready.
  [[nodiscard]] bool cover(Range range) const {
    return std::ranges::any_of(ready_, [&](const Range& part) {
      return part.offset <= range.offset && range.end() <= part.end();
    });
  }
  /// Returns whether some elements of `range` are ready.
  [[nodiscard]] bool touch(Range range) const {
    return std::ranges::any_of(ready_, [&](const Range& part) {
      return part.offset < range.end() && range.offset < part.end();
    });
  }
  /// Returns the ranges of an array of `size` elements that are not ready.
  [[nodiscard]] std::vector<Range> missing(std::size_t size) const {
    std::vector<Range> rest;
    std::size_t at = 0;
    for (const Range& part : ready_) {
      if (part.offset > at) rest.push_back({at, part.offset - at});
      at = part.end();
    }
    if (at < size) rest.push_back({at, size - at});
    return rest;
  }

 private:
  std::vector<Range> ready_;  // ascending, without adjacent ranges
};

}  // namespace thinwire::exchange
