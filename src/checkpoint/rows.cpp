// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/rows.h"

#include <algorithm>

namespace thinwire::checkpoint {

std::vector<Row> rows_of(const ParameterLayout& layout,
                         std::span<const Range> ranges) {
  std::vector<Row> rows;
  for (Range rest : ranges)
    while (rest.size > 0) {
      const Parameter& p = layout.parameter_at(rest.offset);
      const std::size_t first = rest.offset - p.offset;
      const std::size_t count = std::min(rest.size, p.size - first);
      rows.push_back({static_cast<std::size_t>(&p - layout.parameters().data()),
                      {first, count}});
      rest = {rest.offset + count, rest.size - count};
    }
  return rows;
}

std::vector<Range> part_of_ranges(std::span<const Range> ranges, Range part) {
  std::vector<Range> cut;
  std::size_t before = 0;
  for (const Range& range : ranges) {
    const std::size_t begin = std::max(before, part.offset);
    const std::size_t end = std::min(before + range.size, part.end());
    if (begin < end)
      cut.push_back({range.offset + (begin - before), end - begin});
    before += range.size;
  }
  return cut;
}

}  // namespace thinwire::checkpoint
