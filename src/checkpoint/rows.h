// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thinwire/core/parameter_layout.h"

namespace thinwire::checkpoint {

/// Neighbouring elements of one parameter: a row of an index tensor.
struct Row {
  std::size_t parameter = 0;  ///< Index into the layout's, or the manifest's.
  Range range{};              ///< Within the parameter.
  bool operator==(const Row&) const = default;
};

/// Ranges of the flat array in the same order, cut where a parameter ends;
/// empty ones are left out.
[[nodiscard]] std::vector<Row> rows_of(const ParameterLayout& layout,
                                       std::span<const Range> ranges);
/// Returns the ranges of `part`, which counts the elements of all `ranges` in
/// their order.
[[nodiscard]] std::vector<Range> part_of_ranges(std::span<const Range> ranges,
                                                Range part);

/// The number of `part` among `parts` nearly equal ones of [0, size).
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
