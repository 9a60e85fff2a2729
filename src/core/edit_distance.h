// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <vector>

namespace thinwire {

/// Returns the Levenshtein distance between two names.
[[nodiscard]] inline std::size_t edit_distance(std::string_view a,
                                               std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

/// Returns the entry of `names` that `name` most likely misspells, or an empty
/// text. About a third of the letters may differ: one of 3, two of 5.
template <class Names>
[[nodiscard]] std::string_view nearest_name(std::string_view name,
                                            const Names& names) {
  std::string_view nearest;
  std::size_t fewest = std::max<std::size_t>((name.size() + 1) / 3, 1) + 1;
  for (const std::string_view other : names) {
    const std::size_t distance = edit_distance(name, other);
    if (distance >= fewest) continue;
    fewest = distance;
    nearest = other;
  }
  return nearest;
}

}  // namespace thinwire
