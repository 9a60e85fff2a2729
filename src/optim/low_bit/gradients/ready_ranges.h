// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "thinwire/core/parameter_layout.h"

namespace thinwire::optim {

/// Elements of a flat array that are there, given range by range.
class ReadyRanges {
 public:
  void add(Range range) {
    ready_.push_back(range);
    std::ranges::sort(ready_, {}, &Range::offset);
    std::vector<Range> joined;
    for (const Range& next : ready_)
      if (!joined.empty() && joined.back().end() == next.offset)
        joined.back().size += next.size;
      else
        joined.push_back(next);
    ready_ = std::move(joined);
  }
  void clear() noexcept { ready_.clear(); }

  /// Whether all elements of `range` are there.
  [[nodiscard]] bool cover(Range range) const {
    return std::ranges::any_of(ready_, [&](const Range& part) {
      return part.offset <= range.offset && range.end() <= part.end();
    });
  }
  /// Whether some are.
  [[nodiscard]] bool touch(Range range) const {
    return std::ranges::any_of(ready_, [&](const Range& part) {
      return part.offset < range.end() && range.offset < part.end();
    });
  }

 private:
  std::vector<Range> ready_;  // ascending, apart
};

}  // namespace thinwire::optim
