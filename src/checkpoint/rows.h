// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinwire/core/parameter_layout.h"

namespace thinwire::checkpoint {

/// Adjacent elements of one parameter, as a row of an index tensor describes
/// them.
struct Row {
  std::size_t parameter = 0;  ///< Index in the layout, or in the manifest.
  Range range{};              ///< Within the parameter.
  bool operator==(const Row&) const = default;
};

/// Returns the ranges of the flat array in the same order, cut at the ends of
/// parameters. Empty ranges are left out.
[[nodiscard]] std::vector<Row> rows_of(const ParameterLayout& layout,
                                       std::span<const Range> ranges);
/// Returns the ranges of `part`, which counts the elements of all `ranges` in
/// their order.
[[nodiscard]] std::vector<Range> part_of_ranges(std::span<const Range> ranges,
                                                Range part);

/// Returns part number `part` of [0, size) cut into `parts` nearly equal parts.
[[nodiscard]] constexpr Range share_of(std::size_t size, int part,
                                       int parts) noexcept {
  const auto at = [&](int i) {
    const auto whole = size / static_cast<std::size_t>(parts);
    const auto rest = size % static_cast<std::size_t>(parts);
    const auto n = static_cast<std::size_t>(i);
    return whole * n + (n < rest ? n : rest);
  };
  return {at(part), at(part + 1) - at(part)};
}

}  // namespace thinwire::checkpoint
